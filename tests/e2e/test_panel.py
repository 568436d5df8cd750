"""From the first key to a finished training run, through the screen and for real."""

from __future__ import annotations

import pytest

from gpu_engine.devices.discover import cpu_slots
from gpu_engine.runs import folder as runs
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.runs import RunsPane

from ..conftest import slots
from ..panel.panel_kit import panel, shown, type_into, until

pytestmark = pytest.mark.usefixtures("home")


async def test_tick_launch_watch_and_remove():
    machine = cpu_slots()
    if len(machine.devices) < 2:
        machine = slots(2)
    async with panel(machine, sets=("task.params.width=32", "task.params.layers=1",
                                    "task.params.context=32", "task.params.megabytes=0.1",
                                    "batch.size=8")) as (pilot, screen):
        await pilot.press("a", "space", "down", "space")
        await type_into(pilot, screen, "f-train-steps", "6")
        await type_into(pilot, screen, "f-batch-size", "7")
        assert screen.review.problems
        await type_into(pilot, screen, "f-batch-size", "8")
        assert screen.review.problems == ()
        assert "train.steps=6" in screen.review.plan.lines[0]
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.line_at_cursor and screen.focused is screen.runs)
        (run,) = runs.all_runs()
        await until(pilot, lambda: not run.state().live, 120)
        assert run.state().state == "completed", run.state()
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        table = screen.query_one(RunsPane)
        await until(pilot, lambda: table.lines and table.lines[0].state == "completed")
        await pilot.pause()
        said = shown(table)
        assert "✓" in said
        assert "100 %" in said
        assert screen.runs.live == 0
        await pilot.press("escape", "4", "x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: not run.path.exists())
