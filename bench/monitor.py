"""What watching GPUs costs: the panel's share of a core compared with nvitop's, on the same
stand-in driver.

There are eight GPUs with four processes each, and their figures change every second. Each program
runs alone on a terminal of 160×48. All processes of a program are counted, and its calls into the
driver.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

GPUS, EACH = 8, 4
SECONDS = float(os.environ.get("BENCH_SECONDS", "30"))
RUNS = int(os.environ.get("BENCH_RUNS", "2"))
WARM_UP = 8.0
ROOT = Path(__file__).parents[1]


def builder() -> ModuleType:
    """tests/devices/standin/build.py."""
    path = ROOT / "tests" / "devices" / "standin" / "build.py"
    spec = importlib.util.spec_from_file_location("nvml_standin_build", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is missing")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state(pids: Sequence[int], turn: random.Random) -> list[str]:
    """The machine at one moment. All figures that change on a busy machine have changed."""
    lines = [f"count {GPUS}"]
    for gpu in range(GPUS):
        lines += [f"gpu {gpu} {key} {value}" for key, value in (
            ("util", turn.randint(60, 100)), ("mem_util", turn.randint(20, 60)),
            ("mem_used", turn.randint(40 << 10, 70 << 10) << 20), ("temp", turn.randint(55, 80)),
            ("power", turn.randint(200_000, 400_000)), ("clock_sm", turn.randint(1200, 1410)))]
        lines += [f"gpu {gpu} proc {pid} {turn.randint(8 << 10, 15 << 10) << 20} compute "
                  f"{turn.randint(10, 25)}" for pid in pids[gpu * EACH:(gpu + 1) * EACH]]
    return lines


def finish(process: subprocess.Popen[bytes], fd: int) -> None:
    """End a program, reading from its terminal until it has ended, as it may wait for that."""
    process.terminate()
    while process.poll() is None:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                os.read(fd, 1 << 16)
            except OSError:
                break
    process.wait()
    os.close(fd)


class Watched:
    """A program on its own terminal."""

    def __init__(self, argv: Sequence[str], env: dict[str, str]) -> None:
        self.fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True)
        os.close(slave)
        self.bytes = 0

    def read(self, seconds: float) -> None:
        """Read what the program writes, as a terminal does."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                try:
                    self.bytes += len(os.read(self.fd, 1 << 16))
                except OSError:
                    sys.exit("it ended by itself")

    def cpu(self) -> float:
        """Processor seconds so far, of the program and all its children."""
        root = psutil.Process(self.process.pid)
        return sum(sum(p.cpu_times()[:2]) for p in (root, *root.children(recursive=True)))

    def end(self) -> None:
        for process in (psutil.Process(self.process.pid).children(recursive=True)):
            process.terminate()
        finish(self.process, self.fd)


def measure(argv: Sequence[str], machine: Any, pids: Sequence[int], keys: bytes = b""
            ) -> tuple[float, float, float]:
    """Share of a core, NVML calls a second, bytes written a second."""
    turn = random.Random(1)
    machine.set(*state(pids, turn))
    with tempfile.TemporaryDirectory() as home:
        env = machine.env() | {"GPU_PANEL_HOME": home, "TERM": "xterm-256color"}
        watched = Watched(argv, env)
        try:
            watched.read(WARM_UP)
            os.write(watched.fd, keys)
            watched.read(2.0)
            began, cpu, wrote = time.monotonic(), watched.cpu(), watched.bytes
            calls = sum(machine.calls().values())
            while time.monotonic() - began < SECONDS:
                machine.set(*state(pids, turn))
                watched.read(1.0)
            passed = time.monotonic() - began
            return ((watched.cpu() - cpu) / passed,
                    (sum(machine.calls().values()) - calls) / passed,
                    (watched.bytes - wrote) / passed)
        finally:
            watched.end()


def main() -> None:
    programs: list[tuple[str, list[str], bytes]] = [
        ("gpu-panel", [sys.executable, "-m", "gpu_panel"], b""),
        ("gpu-panel, detail pane open", [sys.executable, "-m", "gpu_panel"], b"i"),
    ]
    if importlib.util.find_spec("nvitop"):
        from importlib.metadata import version

        programs.append((f"nvitop {version('nvitop')}, full", [
            sys.executable, "-m", "nvitop", "--monitor", "full"], b""))
    else:
        sys.stdout.write("nvitop is not installed here: no comparison\n")
    with tempfile.TemporaryDirectory() as folder:
        build = builder()
        machine = build.Standin(build.build(Path(folder) / "lib"), Path(folder))
        holders = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)",
                                     "train.py", "--lr", "1e-3"]) for _ in range(GPUS * EACH)]
        try:
            pids = [p.pid for p in holders]
            seen: dict[str, list[tuple[float, float, float]]] = {n: [] for n, _, _ in programs}
            for _ in range(RUNS):  # the programs take turns, as the machine drifts
                for name, argv, keys in programs:
                    seen[name].append(measure(argv, machine, pids, keys))
        finally:
            for process in holders:
                process.kill()
                process.wait()
    means = {name: [statistics.mean(column) for column in zip(*found, strict=True)]
             for name, found in seen.items()}
    for name, (cpu, calls, wrote) in means.items():
        each = ", ".join(f"{c * 100:.2f}" for c, _, _ in seen[name])
        sys.stdout.write(f"{name:<28} {cpu * 100:5.2f} % of a core ({each})   "
                         f"{calls:6.1f} NVML calls/s   {wrote / 1024:5.1f} KiB/s\n")
    if len(programs) > 2:
        base = means[programs[2][0]][0]
        for name, _, _ in programs[:2]:
            sys.stdout.write(f"{name} / nvitop: {means[name][0] / base:.2f}\n")


if __name__ == "__main__":
    main()
