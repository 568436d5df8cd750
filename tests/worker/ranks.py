"""Ranks for tests: a run folder with its plan, and real processes for its ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_engine import events

WORKER = Path(events.__file__).parent / "worker" / "__main__.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_plan(run: Path, use: str, *, params: dict[str, Any] | None = None, world: int = 1,
               mode: str | None = None, size: int = 24, accumulate: int = 1,
               cores: list[int] | None = None, **sections: dict[str, Any]) -> Path:
    """A run folder for `world` gloo ranks (or one process) with a global batch of `size`."""
    mode = mode or ("ddp" if world > 1 else "single")
    distributed = mode in ("ddp", "multinode")
    train = {"epochs": 1, "lr": 0.01, "seed": 0, "workers": 0, "checkpoint_every": 0, "keep": 3,
             "clip": 0.0, "on_nonfinite": "stop", "eval_every": 0, **sections.pop("train", {})}
    if "steps" in train:
        train.pop("epochs")
    spec = {"name": "test", "task": {"use": use, "params": params or {}},
            "batch": {"size": size, "meaning": "global", "accumulate": accumulate},
            "parallel": {"mode": mode, "timeout": 60.0, **sections.pop("parallel", {})},
            "amp": {"dtype": "off", "tf32": False, **sections.pop("amp", {})}, "train": train}
    assert size % (world * accumulate) == 0
    plan = {
        "version": 1, "id": "test", "name": "test", "mode": mode,
        "backend": "gloo" if distributed else "none", "device_type": "cpu",
        "world_size": world, "local_world_size": world, "nodes": 1, "node_rank": 0,
        "replicas": world, "master_addr": "127.0.0.1", "master_port": 0,
        "batch": {"size": size, "meaning": "global", "accumulate": accumulate, "replicas": world,
                  "global_size": size, "per_gpu": size // world // accumulate},
        "lr": {"base": train["lr"], "rule": "none", "reference_batch": None, "factor": 1.0,
               "scaled": train["lr"]},
        "ranks": [{"rank": r, "local_rank": r, "node": 0,
                   "devices": [{"id": f"cpu:{r}", "label": f"CPU {r}", "uuid": None,
                                "torch": "cpu", "cores": cores or []}]} for r in range(world)],
        "spec": spec}
    run.mkdir(parents=True, exist_ok=True)
    (run / "ranks").mkdir(exist_ok=True)
    (run / "plan.json").write_text(json.dumps(plan))
    return run


class Ranks:
    """The processes of one attempt."""

    def __init__(self, run: Path, *, attempt: int = 1, args: tuple[str, ...] = (),
                 env: dict[str, str] | None = None, only: list[int] | None = None,
                 python: str = sys.executable) -> None:
        plan = json.loads((run / "plan.json").read_text())
        self.run, self.world = run, plan["world_size"]
        self.processes: dict[int, subprocess.Popen] = {}
        port = str(free_port())
        for rank in range(self.world):
            if only is not None and rank not in only:
                continue
            own = dict(os.environ, GPU_PANEL_ATTEMPT=str(attempt), OMP_NUM_THREADS="1",
                       MKL_NUM_THREADS="1")
            if plan["backend"] != "none":
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world),
                        "LOCAL_WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": port}
            with (run / "ranks" / f"{rank:05d}.log").open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    [python, str(WORKER), "--run", str(run), *args], env=own | (env or {}),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def wait(self, timeout: float = 90.0) -> list[int]:
        """The exit codes, in order of the ranks."""
        deadline = time.monotonic() + timeout
        return [p.wait(max(deadline - time.monotonic(), 0.1)) for p in self.processes.values()]

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()

    def until(self, seen: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Wait until `seen()` is true, as long as a rank lives; what it gave."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            alive = any(p.poll() is None for p in self.processes.values())
            value = seen()
            if value:
                return value
            if not alive:
                break
            time.sleep(0.01)
        raise AssertionError("did not come about\n" + logs(self.run))


@contextlib.contextmanager
def started(run: Path, **options: Any) -> Iterator[Ranks]:
    ranks = Ranks(run, **options)
    try:
        yield ranks
    finally:
        ranks.end()


def train(run: Path, *, expect: int = 0, **options: Any) -> Path:
    """Run all ranks to their end, and hold them to an exit code."""
    with started(run, **options) as ranks:
        codes = ranks.wait()
    assert codes == [expect] * len(codes), f"exit codes {codes}\n{logs(run)}"
    return run


def read(run: Path, rank: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
    tail = events.Tail(run / "ranks" / f"{rank:05d}.jsonl")
    found = []
    while new := tail.read():
        found += new
    assert tail.skipped == 0
    return [e for e in found if kind is None or e["kind"] == kind]


def logs(run: Path) -> str:
    return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}"
                     for p in sorted((run / "ranks").glob("*.log")))
