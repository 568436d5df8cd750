"""Ranks for tests: a run folder with its plan, and real processes for its ranks."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_engine
from gpu_engine.common.ports import free_port
from gpu_engine.spec import modes

from .. import event_lines
from ..conftest import in_vain, patience
from .zygote import MUTANTS, fork, hits, main

ENVIRON = dict(os.environ)
"""That of every test, whichever is the first to need the zygote: its forks print their sys.path."""
WORKER = Path(gpu_engine.__file__).parent / "worker" / "__main__.py"
TORCHRUN = Path(__file__).with_name("torchrun.py")
"""A program for `Zygote.start`: torchrun, which forks its ranks."""


def write_plan(run: Path, use: str, *, params: dict[str, Any] | None = None, world: int = 1,
               mode: str | None = None, size: int = 24, accumulate: int = 1,
               cores: list[int] | None = None, **sections: dict[str, Any]) -> Path:
    """A run folder for `world` gloo ranks (or one process) with a global batch of `size`."""
    mode = mode or ("ddp" if world > 1 else "single")
    distributed = modes.get(mode).process_a_device
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
        "backend": "gloo" if distributed else "none", "device_type": "cpu", "source": "cpu",
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


class Zygote:
    """Starts processes by forking one that has imported torch, in a fifth of the time. All test
    processes of a pytest run share it."""

    def __init__(self) -> None:
        env = dict(ENVIRON, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        run = env.get("PYTEST_XDIST_TESTRUNUID")
        name = f"gpu-panel-zygote-{f'{run}-{os.getppid()}' if run else os.getpid()}"
        if MUTANTS:  # the fault is in this process
            fork(lambda: main(name), dict(os.environ) | env)
        else:  # if another test process has started one, this one ends at once
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("zygote.py")), name],
                stdin=subprocess.DEVNULL, stdout=2, env=env)
        self._socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + patience()
        while self._socket.connect_ex("\0" + name):
            assert time.monotonic() < deadline, "there is no zygote"
            time.sleep(0.02)
        self._orders = 0
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._rest = b""

    def start(self, argv: list[str], env: dict[str, str], log: Path,
              program: Path | None = None) -> Forked:
        """Start a rank, or a Python program that imports torch."""
        # An answer carries the number of its order, so a late one is never taken for another's,
        # nor an exit code for that of an earlier process with the same pid.
        self._orders += 1
        number = self._orders
        order = {"number": number, "argv": argv, "env": env, "log": str(log),
                 "program": program and str(program)}
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        if not self._until(lambda: number in self._pids, patience()):
            raise AssertionError("the zygote has not answered")
        return Forked(self, number, self._pids[number])

    def code(self, number: int, timeout: float) -> int | None:
        self._until(lambda: number in self._codes, timeout)
        return self._codes.get(number)

    def close(self) -> None:
        self._socket.close()

    def _until(self, there: Callable[[], bool], timeout: float) -> bool:
        """Read answers until the awaited one is there. Returns False if it does not come."""
        deadline = time.monotonic() + timeout
        while not there():
            if not self._hear(max(deadline - time.monotonic(), 0)):
                return False
        return True

    def _hear(self, timeout: float) -> bool:
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._socket], [], [], timeout)
            data = self._socket.recv(65536) if ready else b""
            if not data:
                return False
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        for name, known in (("pid", self._pids), ("code", self._codes)):
            if name in answer:
                known[answer["number"]] = answer[name]
        if "reached" in answer:
            hits().update(answer["reached"])
        return True


class Forked:
    """The part of subprocess.Popen that these tests use."""

    def __init__(self, zygote: Zygote, number: int, pid: int) -> None:
        self._zygote, self._number, self.pid = zygote, number, pid

    def poll(self) -> int | None:
        return self._zygote.code(self._number, 0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._zygote.code(self._number, timeout or patience())
        if code is None:
            raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_zygote: Zygote | None = None


def zygote() -> Zygote:
    global _zygote
    if _zygote is None:
        _zygote = Zygote()
        atexit.register(_zygote.close)
    return _zygote


class Ranks:
    """The processes of one attempt."""

    def __init__(self, run: Path, *, attempt: int = 1, args: tuple[str, ...] = (),
                 env: dict[str, str] | None = None, only: list[int] | None = None,
                 python: str | None = None) -> None:
        """`python`: start them with that interpreter, as the supervisor does; None: fork them."""
        plan = json.loads((run / "plan.json").read_text())
        self.run, self.world = run, plan["world_size"]
        self.processes: dict[int, Any] = {}
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
            path = run / "ranks" / f"{rank:05d}.log"
            if python is None:
                self.processes[rank] = zygote().start(["--run", str(run), *args],
                                                      own | (env or {}), path)
                continue
            with path.open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    [python, str(WORKER), "--run", str(run), *args], env=own | (env or {}),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> list[int]:
        """The exit codes, in the order of ranks."""
        deadline = time.monotonic() + patience()
        return [p.wait(max(deadline - time.monotonic(), 0.1)) for p in self.processes.values()]

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()

    def until(self, seen: Callable[[], Any]) -> Any:
        """Wait until `seen()` is true, as long as any rank lives. Returns its value."""
        deadline = time.monotonic() + patience()
        while time.monotonic() < deadline:
            alive = any(p.poll() is None for p in self.processes.values())
            value = seen()
            if value:
                return value
            if not alive:
                break
            time.sleep(0.01)
        raise AssertionError(f"{in_vain(seen, 0)}\n{logs(self.run)}")


@contextlib.contextmanager
def started(run: Path, **options: Any) -> Iterator[Ranks]:
    ranks = Ranks(run, **options)
    try:
        yield ranks
    finally:
        ranks.end()


def train(run: Path, *, expect: int = 0, **options: Any) -> Path:
    """Run all ranks to their end and check their exit codes."""
    with started(run, **options) as ranks:
        codes = ranks.wait()
    assert codes == [expect] * len(codes), f"exit codes {codes}\n{logs(run)}"
    return run


def read(run: Path, rank: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
    found = event_lines.read(run / "ranks" / f"{rank:05d}.jsonl")
    return [e for e in found if kind is None or e["kind"] == kind]


def logs(run: Path) -> str:
    return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}"
                     for p in sorted((run / "ranks").glob("*.log")))


def last(run: Path) -> dict[str, Any]:
    """The state in its newest checkpoint."""
    from gpu_engine.training import checkpoint

    return saved(checkpoint.listed(run / "checkpoints")[-1])


def saved(path: Path) -> dict[str, Any]:
    """The state in a checkpoint's folder, which is whole."""
    from gpu_engine.training import checkpoint

    checkpoint.verify(path)
    return checkpoint.load(path / "state.pt")
