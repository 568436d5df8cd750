"""The suite, or a part of it, with the built wheel installed in another Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from . import environments, table

SELECTION = tuple(f"tests/{room}" for room in (
    "spec", "plan", "common", "events", "runs", "tasks", "cli", "launch", "supervisor", "queue",
    "hosts", "worker", "e2e", "panel"))
"""Every room of the panel, the engine and the agent, with real ranks in e2e; without what takes
longest and is the ranks' (`training`, `observe`, `scripts`) or the system's (`nodes`, `faults`)."""


def run(root: Path, python: str, folder: Path, *, whole: bool, constraints: Path) -> table.Row:
    """Install and test. Raises NotToBeHad if it can't be installed."""
    with tempfile.TemporaryDirectory() as built:
        build = subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps",
                                "--wheel-dir", built, str(root)],
                               capture_output=True, text=True, check=False)
        if build.returncode:
            raise environments.NotToBeHad(f"the wheel can't be built: {build.stderr[-300:]}")
        (wheel,) = Path(built).glob("*.whl")
        # An environment that is there may hold an older wheel.
        made = environments.environment(folder, python, f"{wheel}[dev]", "-c", str(constraints))
        environments.reinstall(made, str(wheel))
    row = table.Row.today(environments.version_of(made), environments.torch_of(made) or "none")
    tests = ["tests"] if whole else list(SELECTION)
    done = subprocess.run([made, "-m", "pytest", "-q", "-n", os.environ.get("MATRIX_N", "6"),
                           "--dist", "loadfile", "-p", "no:cacheprovider", *tests], cwd=root,
                          text=True, check=False, stdout=subprocess.PIPE)
    sys.stdout.write(done.stdout[-6000:])
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    for name in re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE):
        row.failed[name] = "failed"
    if done.returncode and not row.failed:
        row.failed["pytest"] = last
    count = re.search(r"(\d+) passed", last)
    row.passed = [f"{count[1] if count else 0} tests" + ("" if whole else " of the selection")]
    return row
