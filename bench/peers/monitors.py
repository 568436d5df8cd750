"""Group "gpus": what watching 1, 8 and 64 GPUs costs, on a stand-in driver.

Each GPU has two processes, and all figures change once a second. First frames are taken one after
another; then all programs watch the same machine during the same seconds.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.line import COLUMNS, ROWS, Terminal
from bench.monitor import builder, finish

from .rounds import NotMeasured
from .surroundings import PYTHON, nvtop

EACH = 2
WARM_UP, SECONDS = 8.0, 10.0
FIRST = r"\b80(\.0+)?G"
"""What stands on the screen once a program has drawn the first GPU: its whole memory."""


def programs() -> dict[str, list[str]]:
    """Name → what is started."""
    found = {"gpu-panel": [sys.executable, "-m", "gpu_panel"],
             "nvitop": [str(PYTHON), "-m", "nvitop", "--monitor", "full"]}
    path = nvtop()
    if path is not None:
        found["nvtop"] = [path]
    return found


def missing() -> dict[str, str]:
    return {} if nvtop() else {"nvtop": "it is not installed here"}


class Machine:
    """A machine with so many GPUs, for as long as it is open."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        folder, build = Path(self._folder.name), builder()
        build.__dict__["SOURCE"] = Path(__file__).with_name("nvml_more.c")
        self._machine: Any = build.Standin(build.build(folder / "lib"), folder)
        self._holders = [subprocess.Popen([sys.executable, "-S", "-c",
                                           "import signal; signal.pause()", "train.py"])
                         for _ in range(min(gpus * EACH, 16))]
        self._turn = random.Random(1)
        self.change()
        self.env = self._machine.env() | {
            "GPU_PANEL_HOME": str(folder / "home"), "TERM": "xterm-256color",
            "COLORTERM": "truecolor", "LANG": "C.UTF-8", "COLORFGBG": "15;0",
            "XDG_CONFIG_HOME": str(folder / "config")}

    def change(self) -> None:
        """All figures change, as on a busy machine."""
        turn, lines = self._turn, [f"count {self.gpus}"]
        for gpu in range(self.gpus):
            lines += [f"gpu {gpu} {key} {value}" for key, value in (
                ("util", turn.randint(60, 100)), ("mem_util", turn.randint(20, 60)),
                ("mem_used", turn.randint(40 << 10, 70 << 10) << 20),
                ("temp", turn.randint(55, 80)), ("power", turn.randint(200_000, 400_000)))]
            for n in range(EACH):
                pid = self._holders[(gpu * EACH + n) % len(self._holders)].pid
                lines.append(f"gpu {gpu} proc {pid} {turn.randint(8 << 10, 15 << 10) << 20} "
                             f"compute {turn.randint(10, 25)}")
        self._machine.set(*lines)

    def close(self) -> None:
        for process in self._holders:
            process.kill()
            process.wait()
        self._folder.cleanup()


def measure(machine: Machine) -> dict[tuple[str, str], float]:
    """One round: (measure, program) → value."""
    found = {("first frame", name): _first_frame(argv, machine)
             for name, argv in programs().items()}
    open_: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
    try:
        for name, argv in programs().items():
            open_[name] = _on_terminal(argv, machine.env)
        fds = [fd for _, fd in open_.values()]
        _read(fds, WARM_UP)
        before = {name: _cpu(p) for name, (p, _) in open_.items()}
        began = time.monotonic()
        while time.monotonic() - began < SECONDS:
            machine.change()
            _read(fds, 1.0)
        passed = time.monotonic() - began
        for name, (process, _) in open_.items():
            found["watching", name] = (_cpu(process) - before[name]) / passed
    finally:
        for process, fd in open_.values():
            children = psutil.Process(process.pid).children(recursive=True)
            finish(process, fd)
            for child in children:
                if child.is_running():
                    child.kill()
    return found


def _first_frame(argv: Sequence[str], machine: Machine) -> float:
    began = time.monotonic()
    terminal = Terminal(list(argv), machine.env, None)
    try:
        if terminal.read(60.0, until=FIRST) is None:
            raise NotMeasured("nothing is drawn within a minute")
        return time.monotonic() - began
    finally:
        terminal.end()


def _on_terminal(argv: Sequence[str], env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    fd, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env,
                               start_new_session=True)
    os.close(slave)
    return process, fd


def _read(fds: Sequence[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for fd in select.select(fds, [], [], left)[0]:
            os.read(fd, 1 << 16)


def _cpu(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds so far, of the program and its children."""
    root = psutil.Process(process.pid)
    return sum(sum(p.cpu_times()[:2]) for p in (root, *root.children(recursive=True)))
