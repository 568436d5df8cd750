"""Hosts that are this machine: agents with homes of their own, over a shell in place of ssh."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from gpu_engine.common.procs import environment
from gpu_engine.places.verbs import prepare
from gpu_engine.remote.run import parts
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict
from tests.conftest import wait_for
from tests.training import ranks

DIGITS = {"task": {"use": "gpu_engine.tasks.digits:Digits"}, "batch": {"size": 32},
          "train": {"steps": 6, "workers": 0, "checkpoint_every": 3}}
TWO_HERE = DIGITS | {"devices": {"ids": ["cpu:0", "cpu:1"]}, "parallel": {"mode": "ddp"}}
PACED = f"{Path(__file__).with_name('paced.py')}:Paced"
ENDLESS = DIGITS | {"task": {"use": PACED},
                    "train": {"steps": 1_000_000, "workers": 0, "checkpoint_every": 20}}
"""It trains until something happens to it, and slowly."""
CUT = '[ -e "$GPU_PANEL_HOME.cut" ] && exit 255; exec "$@"'
"""A login that fails while there is such a file."""


def make_hosts(home: Path, *names: str, script: str = 'exec "$@"') -> None:
    """Write hosts.toml: each of `names` is this machine with another $GPU_PANEL_HOME."""
    home.mkdir(exist_ok=True)
    lines = []
    for name in names:
        via = ["env", f"GPU_PANEL_HOME={home.parent / name}", "OMP_NUM_THREADS=1", "sh", "-c",
               script, "login"]
        lines += [f"[hosts.{name}]", f"via = {json.dumps(via)}",
                  f"python = {json.dumps(sys.executable)}"]
    (home / "hosts.toml").touch(0o600)  # under umask 002, others could write to it
    (home / "hosts.toml").write_text("\n".join(lines) + "\n")


def there(run: Run, host: str) -> Path:
    """The folder of the part of `run` that `host` has."""
    part = wait_for(lambda: next((p for p in parts.read(run.path)
                                  if p.host == host and p.path), None))
    return Path(part.path or "")


def losses(folder: Path, rank: int) -> list[float]:
    """Every loss that a rank recorded, in order."""
    lines = map(json.loads, (folder / f"ranks/{rank:05d}.jsonl").read_text().splitlines())
    return [loss for line in lines if line["kind"] == "step" for loss in line["losses"]]


def losses_so_far(folder: Path, rank: int) -> list[float]:
    """As `losses`, of a file that is being written: its last line may be half."""
    path = folder / f"ranks/{rank:05d}.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines()
    return [loss for line in map(json.loads, lines) if line["kind"] == "step"
            for loss in line["losses"]]


def losses_here(folder: Path, spec: dict[str, object]) -> list[list[float]]:
    """The losses of each rank of a run on this machine, whose folder `folder` becomes. Its ranks
    are forked from a process that has imported torch."""
    chosen = prepare(from_dict(spec))
    run, lock = create_run("here", "", chosen.plan, path=folder)
    os.close(lock)
    ranks.train(run.path)
    return [losses(run.path, rank) for rank in range(chosen.plan.world_size)]


def left(*folders: Path) -> list[int]:
    """Pids of what still runs for these run folders."""
    wanted = {b"GPU_PANEL_RUN=" + os.fsencode(f) for f in folders}
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            if wanted & set(environment(pid)):
                found.append(pid)
    return found


def pids() -> list[int]:
    """All that run now."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
