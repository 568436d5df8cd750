"""A tiny training through the command line, and what it has recorded."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_engine.places.verbs import prepare
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import apply_set, from_dict
from gpu_engine.spec.schema import RunSpec

from .. import event_lines
from ..training import ranks

TINY = {
    "task.use": "gpu_engine.tasks.bytes_gpt:BytesGPT", "task.params.width": 32,
    "task.params.layers": 1, "task.params.context": 16, "task.params.megabytes": 0.1,
    "task.params.warmup": 2, "batch.size": 16, "train.steps": 12, "train.lr": 0.01,
    "train.workers": 0, "train.checkpoint_every": 5,
}


def sets(**more) -> list[str]:
    merged = TINY | {k.replace("__", "."): v for k, v in more.items()}
    return [word for k, v in merged.items() for word in ("--set", f"{k}={v}")]


def engine(*args: str) -> list[str]:
    return [sys.executable, "-m", "gpu_engine", *args]


def call(*args: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(engine(*args), capture_output=True, text=True, timeout=600, **more)


def events(run: runs.Run, rank: int) -> list[dict]:
    return event_lines.read(run.events(rank))


def losses(run: runs.Run, rank: int = 0) -> list[float]:
    return [x for e in events(run, rank) if e["kind"] == "step" for x in e.get("losses", ())]


def spec(**more) -> RunSpec:
    """The spec that `sets` with the same arguments gives."""
    data: dict = {}
    for assignment in sets(**more)[1::2]:
        apply_set(data, assignment)
    return from_dict(data)


def reference() -> list[float]:
    """The losses of the same global batches in one process, which is forked from one that has
    imported torch. Its run is left in the present home."""
    chosen = prepare(spec(devices__ids="cpu:0"))
    run, lock = create_run("reference", "", chosen.plan)
    os.close(lock)
    ranks.train(run.path)
    return losses(run)
