"""Group "stop": from the request to the end of the last process, with two ranks that train."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .rounds import NotMeasured, Program
from .starting import Command, Started, by_hand, engine, script, torchrun

PATIENCE = 60.0


def programs(how: str) -> dict[str, Program]:
    """`how`: "Ctrl-C", or "SIGTERM" for what asks from outside."""
    number = signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM

    def signalled(started: Started) -> None:
        for process in started.processes:
            os.kill(process.pid, number)

    return {
        "by hand": lambda: _stopped(by_hand(2), signalled),
        "torchrun": lambda: _stopped(torchrun(2), signalled),
        "gpu-panel, own script": lambda: _stopped(
            script(2), signalled if how == "Ctrl-C" else _asked),
        "gpu-panel, its engine": lambda: _stopped(
            engine(2, 10_000_000), signalled if how == "Ctrl-C" else _asked),
    }


def _asked(started: Started) -> None:
    """`gpu-engine stop`, whose own start is part of the time."""
    subprocess.Popen([sys.executable, "-m", "gpu_engine", "stop", "last"],
                     env=os.environ | {"GPU_PANEL_HOME": f"{started.folder.name}/home"},
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _stopped(command: Command, ask: Callable[[Started], None]) -> dict[str, float]:
    started = Started(command, steps=10_000_000, warm=1, LOOP_RANKS="2")
    with started.folder:
        try:
            started.wait_first()
            time.sleep(0.5)
            pids = started.alive()
            began = time.monotonic()
            ask(started)
            while left := [pid for pid in pids if _lives(pid)]:
                for process in started.processes:
                    process.poll()
                if time.monotonic() - began > PATIENCE:
                    raise NotMeasured(f"{len(left)} processes are left after {PATIENCE:.0f} s")
                time.sleep(0.005)
            return {"stop": time.monotonic() - began}
        finally:
            started.kill()


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
