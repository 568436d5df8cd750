"""How each launcher starts a loop, and what a whole run of it gives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common.ports import free_port

from .rounds import NotMeasured
from .surroundings import LOOPS, PYTHON

PATIENCE = 600.0
"""Seconds after which a program is taken for one that hangs."""


@dataclass
class Command:
    """What a person types: one command, or one for each rank."""

    argvs: Sequence[Sequence[str]]
    environments: Sequence[Mapping[str, str]] = field(default_factory=lambda: [{}])


def loop(file: str, *args: str) -> list[str]:
    return [str(PYTHON), str(LOOPS / file), *args]


def by_hand(ranks: int, file: str = "bare.py") -> Command:
    """The processes themselves, as nothing can start them sooner."""
    if ranks == 1:
        return Command([loop(file)])
    port = str(free_port())
    return Command([loop(file)] * ranks, [
        {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(ranks),
         "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for r in range(ranks)])


def torchrun(ranks: int, file: str = "bare.py") -> Command:
    return Command([[str(PYTHON), "-m", "torch.distributed.run", "--standalone",
                     f"--nproc-per-node={ranks}", str(LOOPS / file)]])


def accelerate(ranks: int) -> Command:
    """`accelerate launch` starts several ranks on GPUs by torchrun's code, and none on CPUs."""
    return torchrun(ranks, "with_accelerate.py") if ranks > 1 else \
        Command([loop("with_accelerate.py")])


def fabric(ranks: int) -> Command:
    if ranks == 1:
        return Command([loop("with_fabric.py")])
    return Command([[str(PYTHON), "-m", "lightning.fabric.cli", "--accelerator=cpu",
                     f"--devices={ranks}", "--strategy=ddp", f"--main-port={free_port()}",
                     str(LOOPS / "with_fabric.py")]])


def lightning(ranks: int, how: str) -> Command:
    return Command([loop("with_lightning.py", str(ranks), how)])


def engine(ranks: int, steps: int) -> Command:
    """gpu-panel's own training of the same task."""
    sets = {"task.use": f"{LOOPS / 'task.py'}:Timed", "batch.size": 64, "batch.meaning": "per_gpu",
            "train.steps": steps + 2, "train.lr": 0.01, "train.workers": 0,
            "train.checkpoint_every": 0, "parallel.mode": "ddp" if ranks > 1 else "single",
            "run.python": PYTHON, "devices.ids": _slots(ranks)}
    return Command([[sys.executable, "-m", "gpu_engine", "run", "--json", *(
        word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]])


def script(ranks: int, file: str = "bare.py", *args: str) -> Command:
    """An unchanged script under gpu-panel."""
    return Command([[sys.executable, "-m", "gpu_engine", "run", "--json", "--mode",
                     "ddp" if ranks > 1 else "single", "--devices", _slots(ranks), "--",
                     *loop(file, *args)]])


def _slots(ranks: int) -> str:
    return ",".join(f"cpu:{i}" for i in range(ranks))


class Started:
    """A command that runs, in a folder of its own."""

    def __init__(self, command: Command, steps: int, warm: int, **more: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)
        self._out = Path(self.folder.name) / "out"
        self._mark = f"PEERS_MARK={self.folder.name}"
        base = os.environ | {"PEERS_MARK": self.folder.name, "OMP_NUM_THREADS": "1",
                             "LOOP_STEPS": str(steps),
                             "LOOP_WARM": str(warm), "LOOP_OUT": str(self._out),
                             "GPU_PANEL_HOME": f"{self.folder.name}/home",
                             "PYTHONWARNINGS": "ignore", **more}
        self.log = Path(self.folder.name) / "log"
        self.began = time.time()
        with self.log.open("wb") as log:
            self.processes = [
                subprocess.Popen(argv, env=base | dict(own), cwd=self.folder.name, stdout=log,
                                 stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
                for argv, own in zip(command.argvs, command.environments, strict=True)]

    def alive(self) -> list[int]:
        """Pids of everything that it has started and that has not ended."""
        return marked(self._mark)

    def out(self) -> dict[str, float]:
        """What rank 0 has written so far."""
        return json.loads(self._out.read_text()) if self._out.exists() else {}

    def wait_first(self) -> None:
        """Wait until rank 0 has ended its first step."""
        while "first" not in self.out():
            if all(p.poll() is not None for p in self.processes) \
                    or time.time() - self.began > PATIENCE:
                raise NotMeasured(self.failure())
            time.sleep(0.01)

    def wait(self) -> dict[str, float]:
        """Wait for the end. Returns what rank 0 has measured, and the seconds from the command to
        the end of its first step."""
        try:
            for process in self.processes:
                process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"not done within {PATIENCE:.0f} s") from None
        finally:
            self.kill()
        found = self.out()
        if "step" not in found:
            raise NotMeasured(self.failure())
        return {"start": found["first"] - self.began, "step": found["step"], "cpu": found["cpu"]}

    def failure(self) -> str:
        """The last line that it has said."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return "it failed: " + (lines[-1][:200] if lines else "no output")

    def kill(self) -> None:
        """End everything that it has started, wherever that has moved."""
        for pid in marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


def marked(mark: str) -> list[int]:
    """Processes that have `mark`, NAME=value, in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def whole(command: Command, steps: int, warm: int, **more: str) -> dict[str, float]:
    """Run a command to its end; see `Started.wait`."""
    started = Started(command, steps, warm, **more)
    with started.folder:
        return started.wait()
