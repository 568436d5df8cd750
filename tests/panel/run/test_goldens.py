"""The run screen as text in both sizes. GOLDENS=write writes the pictures again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.events.paths import DEVICES
from gpu_engine.plan.records import DeviceUse, RankPlan
from gpu_engine.runs.folder import Cause

from ... import event_lines
from ..panel_kit import compare, picture
from ..run_kit import GIB, T0, Mini, Written, press, settled, watched

SIZES = [(80, 24), (160, 48)]


def running(folder: Path) -> Written:
    run = Written(folder)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 199)
        run.log(rank, b"".join(b"epoch 0 step %d of rank %d\n" % (s, rank) for s in range(200)))
    run.write(0, ("eval", 99, {"step": 199, "loss": 1.91, "accuracy": 0.412}),
              ("checkpoint", 99.2, {"step": 199, "path": "checkpoints/step-00000199",
                                    "seconds": 0.2, "bytes": 1 << 28}))
    return run


def failed(folder: Path) -> Written:
    run = running(folder)
    trace = ("Traceback (most recent call last):\n  File \"train.py\", line 12, in loss\n"
             "    y = model(x)\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    words = "CUDA out of memory. Tried to allocate 2.00 GiB."
    run.write(1, ("error", 100.1, {"type": "OutOfMemoryError", "message": words,
                                   "traceback": trace, "phase": "forward", "step": 199}),
              ("end", 100.2, {"outcome": "failed", "steps": 200, "seconds": 100.0}))
    run.write(0, ("error", 100.2, {"type": "DistBackendError", "message": "peer gone",
                                   "traceback": "later", "phase": "backward", "step": 199}))
    run.state("failed", ended=T0 + 101, exit_code=1, reason="rank 1 ended with exit status 1",
              cause=Cause(words, 1, "OutOfMemoryError", trace))
    run.release()
    return run


@pytest.mark.parametrize("size", SIZES, ids=lambda s: str(s[0]))
async def test_a_run_that_trains(tmp_path, size):
    app = Mini(running(tmp_path).run, at=100.5)
    async with app.run_test(size=size) as pilot:
        await settled(pilot, lambda s: s.caught_up and s.view.saved is not None)
        await compare(f"run-{size[0]}", app)
        if size[0] == 160:
            await picture("run", app)


async def test_its_ranks_behind_their_tab(tmp_path):
    app = Mini(running(tmp_path).run, at=100.5)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, lambda s: s.caught_up and s.view.saved is not None)
        await press(pilot, "3")
        await compare("run-ranks-80", app)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: str(s[0]))
async def test_a_run_that_failed(tmp_path, size):
    app = Mini(failed(tmp_path).run, at=160)
    async with app.run_test(size=size) as pilot:
        await settled(pilot, lambda s: s.caught_up and s.view.saved is not None)
        await compare(f"run-failed-{size[0]}", app)


async def test_four_ranks_with_everything_on_the_smallest_screen_for_all_panes(tmp_path):
    """The card's capacity, the devices' figures, the slowest first, and marks."""
    cards = tuple(RankPlan(i, i, 0, (DeviceUse(str(i), f"GPU {i}", None, "cuda:0",
                                               memory=80 * GIB),)) for i in range(4))
    run = Written(tmp_path, ranks=4, plan={"ranks": cards})
    for rank in range(4):
        run.start(rank)
        run.steps(rank, 0, 199 - 10 * rank)
        run.log(rank, b"".join(b"step %d of rank %d\n" % (s, rank) for s in range(200)))
    run.write(0, ("eval", 50, {"step": 100, "accuracy": 0.25}))
    (run.run.path / DEVICES).write_bytes(event_lines.line(
        "devices", {"ids": list("0123"), "utilization": [0.97, 0.95, 0.31, None],
                    "power": [301, 298, 140, 305], "temperature": [61, 60, 48, 62]}, t=T0 + 134))
    async with watched(run, lambda s: s.caught_up and s.devices.version, at=135.5,
                       size=(100, 30)) as (pilot, app):
        await press(pilot, "3", "o")
        await compare("run-100", app)
