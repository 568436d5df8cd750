"""How long starting takes: the command line, and the panel's first frame beside that of an empty
Textual app."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time

import psutil

from bench.monitor import finish

RUNS = int(os.environ.get("BENCH_RUNS", "9"))
EMPTY = """
from textual.app import App
from textual.widgets import Static

class Empty(App):
    def compose(self):
        yield Static("Devices")

Empty().run()
"""


def command(*args: str, home: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", *args], env=os.environ | {"GPU_PANEL_HOME": home},
                   stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def first_frame(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Seconds from the start of a program until "Devices" is on the terminal, which is the title of
    a pane; and the processor seconds that it has taken by then."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True, env=env)
    os.close(slave)
    seen = b""
    try:
        while b"Devices" not in seen:
            ready, _, _ = select.select([master], [], [], 20)
            if not ready:
                sys.exit("nothing was drawn")
            seen += os.read(master, 65536)
        took = time.perf_counter() - began
        return took, sum(psutil.Process(process.pid).cpu_times()[:2])
    finally:
        finish(process, master)


def frames(home: str) -> None:
    """The panel's first frame beside that of Textual's smallest app, which take turns."""
    env = os.environ | {"GPU_PANEL_HOME": home, "TERM": "xterm-256color",
                        "PYTHONPYCACHEPREFIX": os.path.join(home, "compiled")}  # noqa: PTH118
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    programs = {"an empty app, first frame": [sys.executable, "-c", EMPTY],
                "gpu-panel, first frame": [sys.executable, "-m", "gpu_panel"]}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for turn in range(RUNS + 1):
        for name, argv in programs.items():
            found = first_frame(argv, env)
            if turn:  # the first compiles
                took[name].append(found)
    medians = []
    for name, each in took.items():
        whole, busy = (sorted(column) for column in zip(*each, strict=True))
        medians.append((statistics.median(whole), statistics.median(busy)))
        show(name, whole, f"   processor {medians[-1][1] * 1e3:.0f} ms")
    (empty, busy), (panel, more) = medians
    sys.stdout.write(f"the panel's first frame is {panel / empty:.2f} × as late, with "
                     f"{more / busy:.2f} × the processor time\n")


def show(name: str, took: list[float], more: str = "") -> None:
    took = sorted(took)
    sys.stdout.write(f"{name:<26} median {statistics.median(took) * 1e3:6.0f} ms   "
                     f"({took[0] * 1e3:.0f} to {took[-1] * 1e3:.0f}, {RUNS} runs){more}\n")
    sys.stdout.flush()


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        for name, measure in (
            ("python -m sysconfig", lambda: command("sysconfig", home=home)),
            ("gpu-engine presets", lambda: command("gpu_engine", "presets", home=home)),
            ("gpu-engine plan ddp", lambda: command("gpu_engine", "plan", "ddp", "--devices",
                                                    "cpu:0", home=home)),
        ):
            show(name, [measure() for _ in range(RUNS)])
        frames(home)


if __name__ == "__main__":
    main()
