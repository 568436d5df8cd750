"""torchrun as it is, but its agent forks the ranks from itself instead of starting interpreters.

    python torchrun.py [OPTIONS OF TORCHRUN] (-m gpu_engine.worker | -- WORKER_FILE) ...

In a process that has imported torch, this takes a tenth of the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from gpu_engine.worker import start


class Rank:
    """The part of subprocess.Popen that torchrun's agent uses."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        from zygote import fork

        self.returncode: int | None = None
        self.pid = fork(lambda: start.main(argv, os.environ), env)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int | None:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout)
            time.sleep(0.01)
        return self.returncode


def popen(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Rank:
    """Takes the place of SubprocessHandler._popen."""
    assert args[:2] == (sys.executable, "-u"), args
    rank = 4 if args[2:4] == ("-m", "gpu_engine.worker") else 3
    assert rank == 4 or args[2].endswith("gpu_engine/worker/__main__.py"), args
    return Rank(list(args[rank:]), env)


def main(argv: list[str]) -> None:
    SubprocessHandler._popen = popen
    run.main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
