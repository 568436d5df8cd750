"""What the panel sends to a terminal, and how long a key takes over a slow line.

Eight ranks on stand-in GPUs record noisy losses, 20 a second each; the panel shows their run at
120×36. The terminal at the other end is pyte's. It reads no more bytes a second than the line
carries, and answers as a terminal does; its answers and the keys take no time.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import random
import re
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyte
import pyte.modes

from bench.monitor import GPUS, builder, finish, state

COLUMNS, ROWS = 120, 36
SECONDS = float(os.environ.get("BENCH_SECONDS", "20"))
KEYS = int(os.environ.get("BENCH_KEYS", "15"))
PIECE = 0.02
"""Seconds of the line's time that are read at once."""
_MODES = re.compile(r"\x1b\[\?2026[hl]|\x1b\[>\d+u|\x1b\[<u|\x1b\[\?\d+\$p|\x1b\]22;[^\x07]*\x07")
"""What pyte takes for text."""
_WHOLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[^\[\]]")
"""An escape sequence that is complete."""


class Terminal:
    """A program on a terminal at the end of a line of `speed` bytes a second; None: any."""

    def __init__(self, argv: list[str], env: Mapping[str, str], speed: float | None) -> None:
        self.speed = speed
        self.bytes = 0
        self._due = time.monotonic()
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.screen.reset_mode(pyte.modes.DECAWM)
        self._stream = pyte.Stream(self.screen)
        self.fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True)
        os.close(slave)

    def read(self, seconds: float, until: str | None = None) -> float | None:
        """Read for a while, or until the screen shows a text (a pattern). Seconds until then."""
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if until is not None and re.search(until, "\n".join(self.screen.display)):
                return now - began
            self._due = max(self._due, now - PIECE)
            if self._due > now:
                time.sleep(self._due - now)
            size = 1 << 16 if self.speed is None else max(int(self.speed * PIECE), 1)
            if select.select([self.fd], [], [], 0.02)[0]:
                self._take(os.read(self.fd, size))
        return None

    def _take(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.speed is not None:
            self._due += len(data) / self.speed
        text = self._rest + self._decoder.decode(data)
        began = text.rfind("\x1b")
        whole = began if began >= 0 and not _WHOLE.match(text, began) else len(text)
        text, self._rest = text[:whole], text[whole:]
        self._stream.feed(_MODES.sub("", text))
        if "\x1b[?2026$p" in text:
            os.write(self.fd, b"\x1b[?2026;2$y")
        for _ in range(text.count("\x1b[6n")):
            os.write(self.fd, b"\x1b[5;5R")

    def key(self, key: bytes, until: str, patience: float = 120.0) -> float:
        """Seconds from a key to its effect."""
        os.write(self.fd, key)
        took = self.read(patience, until)
        if took is None:
            sys.exit(f"{until!r} is not shown within {patience:.0f} s:\n"
                     + "\n".join(self.screen.display))
        return took

    def cpu(self) -> float:
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])

    def end(self) -> None:
        finish(self.process, self.fd)


def measure(env: Mapping[str, str], speed: float | None) -> dict[str, float]:
    """Bytes to open the panel and the run, bytes a second while it is watched, its share of a core,
    and the seconds from a key to its effect."""
    terminal = Terminal([sys.executable, "-m", "gpu_panel"], env, speed)
    try:
        terminal.read(300.0, until=r"running.*step [\d,]+")
        terminal.read(5.0)
        opened = terminal.bytes
        terminal.key(b"4", "open", 300.0)
        terminal.key(b"\r", "log . rank 0", 300.0)
        terminal.read(10.0)
        run = terminal.bytes - opened
        began, before, cpu = time.monotonic(), terminal.bytes, terminal.cpu()
        terminal.read(SECONDS)
        passed = time.monotonic() - began
        steady = (terminal.bytes - before) / passed
        share = (terminal.cpu() - cpu) / passed
        took = []
        for n in range(KEYS):
            took.append(terminal.key(b"r", f"log . rank {(n + 1) % GPUS}"))
            terminal.read(0.7)
        took.sort()
        return {"open": opened, "run": run, "steady": steady, "cpu": share,
                "key": statistics.median(took), "worst": took[-1]}
    finally:
        terminal.end()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="line-") as name:
        folder, build = Path(name), builder()
        machine = build.Standin(build.build(folder / "lib"), folder)
        machine.set(*(line for line in state([], random.Random(1))
                      if " util " not in line and " mem_used " not in line))
        env = machine.env() | {"GPU_PANEL_HOME": str(folder / "home"), "TERM": "xterm-256color",
                               "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        for key in ("TMUX", "STY", "LC_ALL", "LC_CTYPE"):
            env.pop(key, None)
        engine = [sys.executable, "-m", "gpu_engine"]
        begun = subprocess.run(
            [*engine, "run", "--detach", "--json", "--mode", "ddp", "--devices",
             ",".join(map(str, range(GPUS))), "--set", "parallel.backend=gloo", "--",
             sys.executable, "-S", "-E", str(Path(__file__).with_name("emit.py")), "20", "noisy"],
            env=env, capture_output=True, text=True, check=True)
        run = Path(json.loads(begun.stdout)["path"])
        try:
            time.sleep(10.0)
            for what, speed in (("any line", None), ("15 kB/s", 15e3)):
                found = measure(env, speed)
                sys.stdout.write(
                    f"{what:<26} opens with {found['open'] / 1e3:6.1f} kB, the run with "
                    f"{found['run'] / 1e3:6.1f} kB; then {found['steady'] / 1e3:5.2f} kB/s, "
                    f"{found['cpu'] * 100:4.1f} % of a core; a key takes "
                    f"{found['key'] * 1e3:5.0f} ms, at worst {found['worst'] * 1e3:5.0f} ms\n")
                sys.stdout.flush()
        finally:
            subprocess.run([*engine, "stop", "--now", run.name], env=env, check=True,
                           capture_output=True)


if __name__ == "__main__":
    main()
