"""Pictures of real runs for the README, on two CPU slots: `python docs/site/real.py`.

A sweep and a run on one slot are trained to their end, a run on both is watched for a while, on the
launch screen and on its own. Then the sweep's table, and both runs compared. Writes
docs/pictures/real-*.svg, which differ each time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_engine.runs.folder import all_runs
from gpu_panel.app import PanelApp

PICTURES = Path(__file__).parents[1] / "pictures"
DIGITS = ("--set", "task.use=gpu_engine.tasks.digits:Digits", "--set", "batch.size=64")
SECONDS = 75.0
"""For which the second run is watched: what the history of the devices shows."""


def train(*words: str) -> None:
    """Start a run with the command line."""
    subprocess.run([sys.executable, "-m", "gpu_engine", "run", *words], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def take() -> None:
    """Open the panel, train, and write the pictures."""
    await asyncio.to_thread(train, "default", *DIGITS, "--set", "name=digits-lr", "--devices",
                            "cpu:0", "--set", "train.epochs=8", "--grid",
                            "train.lr=1e-3,3e-3,1e-2,3e-2,1e-1")
    await ended()
    async with PanelApp().run_test(size=(160, 48)) as pilot:
        await asyncio.sleep(20)
        await asyncio.to_thread(train, "default", *DIGITS, "--set", "name=digits-one",
                                "--devices", "cpu:0", "--set", "train.epochs=20")
        await asyncio.to_thread(train, "ddp", *DIGITS, "--set", "name=digits-two", "--devices",
                                "cpu:0,cpu:1", "--set", "train.epochs=4000", "--set",
                                "train.lr=0.0005", "--detach")
        await asyncio.sleep(SECONDS)
        await pilot.press("4", "home")
        await asyncio.sleep(3)
        save("real-launch", pilot.app)
        await pilot.press("enter")
        await asyncio.sleep(5)
        save("real-run", pilot.app)
        await pilot.press("escape", "m", "m", "c")
        await asyncio.sleep(5)
        save("real-compare", pilot.app)
        await pilot.press("escape", "enter")
        await asyncio.sleep(5)
        save("real-sweep", pilot.app)
        for run in all_runs():
            if run.state().live:
                run.stop()
        await ended()


async def ended() -> None:
    """Wait until no run is live; one that waits is."""
    while any(run.state().live for run in all_runs()):
        await asyncio.sleep(0.2)


def save(name: str, app: PanelApp) -> None:
    """Write the screen as it is now."""
    svg = app.export_screenshot(title="gpu-panel", simplify=True)
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"GPU_PANEL_HOME": home, "OMP_NUM_THREADS": "1"}
        asyncio.run(take())
