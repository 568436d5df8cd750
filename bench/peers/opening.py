"""Group "open": from the command to the whole curve of a finished run of a million points.

The terminal programs are measured on a terminal of 120×36, until the last step stands on it. The
two that show a page are measured without a browser, until their server has given the points that
the page asks for: TensorBoard a sample of 1000, Trackio of 3000. What a browser takes to draw them
would come on top.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.line import Terminal
from gpu_engine.common.ports import free_port

from .rounds import NotMeasured, Program
from .surroundings import FOLDER, LOOPS, PYTHON

POINTS = 1_000_000
DATA = FOLDER / "data"
PATIENCE = 600.0


def programs() -> dict[str, Program]:
    """Name → what opens its run once. Writes the runs first, which takes minutes; they are kept."""
    for tool in ("tensorboard", "wandb", "trackio"):
        _write(tool)
    ours = DATA / "gpu-panel"
    _write_ours(ours, POINTS, 1)
    return {
        "gpu-panel": lambda: opened_by_panel(ours, POINTS, 1),
        "W&B's LEET": _leet,
        "TensorBoard's server": _tensorboard,
        "Trackio's server": _trackio,
    }


def _write(tool: str) -> None:
    done = DATA / f"{tool}.{POINTS}"
    if done.exists():
        return
    DATA.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(DATA / tool, ignore_errors=True)
    subprocess.run([PYTHON, LOOPS / "curve.py", tool, str(POINTS)], cwd=DATA, check=True,
                   env=os.environ | {"TRACKIO_DIR": str(DATA / "trackio"),
                                     "WANDB_ERROR_REPORTING": "false"},
                   stdout=subprocess.DEVNULL)
    done.touch()


def _write_ours(home: Path, points: int, ranks: int) -> None:
    """A finished run, as bench/big.py makes it, in a folder for GPU_PANEL_HOME."""
    if (home / "whole").exists():
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    from bench import big

    big.POINTS, big.RANKS = points, ranks
    big.make(home)
    (home / "whole").touch()


def opened_by_panel(home: Path, points: int, ranks: int) -> dict[str, float]:
    """Seconds from the command to the screen of the run, and to its whole curve."""
    from bench import big

    last = f"step {points // ranks // big.EACH * big.EACH:,}"
    began = time.monotonic()
    terminal = _terminal([sys.executable, "-m", "gpu_panel"], {"GPU_PANEL_HOME": str(home)})
    try:
        if terminal.read(PATIENCE, until="completed") is None:
            raise NotMeasured("the list of runs is not shown")
        terminal.key(b"4", "open", PATIENCE)
        terminal.key(b"\r", "log . rank 0", PATIENCE)
        screen = time.monotonic() - began
        while last not in (shown := "\n".join(terminal.screen.display)) \
                or "reading what" in shown:
            if time.monotonic() - began > PATIENCE:
                raise NotMeasured("the curve is not whole after minutes")
            terminal.read(0.02)
        return {"opened": time.monotonic() - began, "screen": screen}
    finally:
        terminal.end()


def _leet() -> dict[str, float]:
    run = next((DATA / "wandb").glob("offline-run-*"))
    began = time.monotonic()
    terminal = _terminal([str(PYTHON.with_name("wandb")), "leet", "run", str(run)],
                         {"WANDB_ERROR_REPORTING": "false"})
    try:
        if terminal.read(PATIENCE, until=rf"_step +{POINTS - 1}") is None:
            raise NotMeasured("the last step is not shown within minutes")
        return {"opened": time.monotonic() - began}
    finally:
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.end()
        for child in children:  # LEET is a child that outlives the command
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _terminal(argv: list[str], more: dict[str, str]) -> Terminal:
    return Terminal(argv, os.environ | more | {
        "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8",
        "COLORFGBG": "15;0"}, None)


def _tensorboard() -> dict[str, float]:
    port = free_port()
    query = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=run&tag=loss"

    def whole() -> bool:
        with urllib.request.urlopen(query, timeout=30) as got:
            return json.load(got)[-1][1] == POINTS - 1

    return _served([str(PYTHON), "-m", "tensorboard.main", "--logdir", "tensorboard",
                    f"--port={port}"], {}, whole)


def _trackio() -> dict[str, float]:
    port = free_port()
    ask = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/get_logs", method="POST",
        data=json.dumps({"project": "peers", "run": "one", "scalar_only": True}).encode(),
        headers={"content-type": "application/json"})

    def whole() -> bool:
        with urllib.request.urlopen(ask, timeout=PATIENCE) as got:
            return json.load(got)["data"][-1]["step"] == POINTS - 1

    return _served([str(PYTHON.with_name("trackio")), "show", "--project", "peers"],
                   {"GRADIO_SERVER_PORT": str(port), "TRACKIO_DIR": str(DATA / "trackio"),
                    "BROWSER": "true"}, whole)


def _served(argv: list[str], more: dict[str, str], whole: Callable[[], bool]) -> dict[str, float]:
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        server = subprocess.Popen(argv, cwd=DATA, env=os.environ | more, stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, start_new_session=True)
        try:
            while True:
                with contextlib.suppress(urllib.error.URLError, OSError, LookupError, ValueError):
                    if whole():
                        return {"opened": time.monotonic() - began}
                if server.poll() is not None or time.monotonic() - began > PATIENCE:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines()
                    raise NotMeasured("its server gave nothing whole: "
                                      + (said[-1][:200] if said else "no output"))
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, 15)
            server.wait()
