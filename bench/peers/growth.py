"""Groups "points", "runs" and "ranks": how gpu-panel's own cost grows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.line import Terminal

from .opening import _terminal, _write_ours, opened_by_panel
from .rounds import NotMeasured, Program
from .surroundings import FOLDER

POINTS = (10_000, 100_000, 1_000_000, 10_000_000)
RUNS = (1, 10, 100, 1000, 10_000)
RANKS = (1, 8, 64)
KEYS = 8
SECONDS = 12.0


def points() -> dict[str, Program]:
    """Finished runs of 8 ranks."""
    def program(count: int) -> Program:
        home = FOLDER / "data" / f"points{count}"
        _write_ours(home, count, 8)
        return lambda: opened_by_panel(home, count, 8)

    return {f"{count:,} points": program(count) for count in POINTS}


def runs() -> dict[str, Program]:
    """Folders of finished runs, each of two ranks with 50 steps."""
    def program(count: int) -> Program:
        home = FOLDER / "data" / f"runs{count}"
        if not (home / "whole").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            os.environ["GPU_PANEL_HOME"] = str(home)
            from bench.runs import make

            make(home, count, 50)
            (home / "whole").touch()
        return lambda: _listed(home, count)

    return {f"{count:,} runs": program(count) for count in RUNS}


def _listed(home: Path, count: int) -> dict[str, float]:
    for kept in home.glob("runs/*/digest.json"):
        kept.unlink()
    listed, _ = _engine(home, "--json", "-n", str(count))
    _, best = _engine(home, "--best", "loss")
    began = time.monotonic()
    terminal = _terminal([sys.executable, "-m", "gpu_panel"], {"GPU_PANEL_HOME": str(home)})
    try:
        if terminal.read(600.0, until=rf"Runs ─ {count:,} earlier(?! · reading)") is None:
            raise NotMeasured("the panel does not list them within ten minutes")
        return {"listed": listed, "best": best, "panel lists": time.monotonic() - began,
                "panel": terminal.cpu()}
    finally:
        terminal.end()


def _engine(home: Path, *words: str) -> tuple[float, float]:
    """Seconds of a clock and of the processor that `gpu-engine runs` takes."""
    began, before = time.monotonic(), os.times()
    done = subprocess.run([sys.executable, "-m", "gpu_engine", "runs", *words],
                          env=os.environ | {"GPU_PANEL_HOME": str(home)}, capture_output=True)
    if done.returncode:
        raise NotMeasured(done.stderr.decode(errors="replace")[-200:])
    after = os.times()
    return time.monotonic() - began, sum(after[2:4]) - sum(before[2:4])


def ranks() -> dict[str, Program]:
    """Live runs, whose ranks record 20 events a second each."""
    return {f"{count} ranks": lambda count=count: _followed(count) for count in RANKS}


def _followed(count: int) -> dict[str, float]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        writer = subprocess.Popen([sys.executable, "-m", "bench.peers.live", str(home), str(count)],
                                  stdout=subprocess.PIPE, text=True)
        try:
            if writer.stdout is None or not writer.stdout.readline():
                raise NotMeasured("no live run was made")
            return _watched(home)
        finally:
            writer.kill()
            writer.wait()


def _watched(home: Path) -> dict[str, float]:
    terminal = _terminal([sys.executable, "-m", "gpu_panel"], {"GPU_PANEL_HOME": str(home)})
    try:
        if terminal.read(60.0, until=r"running.*step [\d,]+|running") is None:
            raise NotMeasured("the live run is not listed")
        terminal.key(b"4", "open", 60.0)
        terminal.key(b"\r", "log . rank 0", 60.0)
        terminal.read(4.0)
        began, cpu, wrote = time.monotonic(), terminal.cpu(), terminal.bytes
        recorded = _bytes(home)
        terminal.read(SECONDS)
        passed = time.monotonic() - began
        found = {"following": (terminal.cpu() - cpu) / passed,
                 "to the terminal": (terminal.bytes - wrote) / passed,
                 "recorded": (_bytes(home) - recorded) / passed}
        took = []
        for _ in range(KEYS):
            took.append(_key(terminal))
            terminal.read(0.3)
        return found | {"key": sorted(took)[len(took) // 2], "slowest key": max(took)}
    finally:
        terminal.end()


def _key(terminal: Terminal) -> float:
    """Seconds from ? to the list of keys."""
    took = terminal.key(b"?", "─ Keys ─")
    terminal.read(0.3)
    terminal.key(b"\x1b", r"(?s)\A(?!.*─ Keys ─)")
    return took


def _bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.glob("runs/*/ranks/*.jsonl"))


