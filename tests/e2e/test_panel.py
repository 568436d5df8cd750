"""A day at the panel, with keys alone and for real: what its user presses and reads. None of this
may change when the insides do. Its counterpart at the command line is test_day.py."""

from __future__ import annotations

import pytest

from gpu_engine.common import paths
from gpu_engine.runs import folder as runs

from ..conftest import slots
from ..panel.panel_kit import panel, screen_text, type_into, until
from .kit import events, losses

pytestmark = pytest.mark.usefixtures("home")
TINY = ("task.params.width=32", "task.params.layers=1", "task.params.context=32",
        "task.params.megabytes=0.1", "batch.size=8")


@pytest.mark.timeout(300)
async def test_a_day():
    async with panel(slots(2), sets=TINY) as (pilot, screen):
        async def reads(*texts: str) -> None:
            """Wait until the screen says all of this."""
            await until(pilot, lambda: all(t in screen_text(pilot.app) for t in texts))

        # Two slots are ticked; a batch that they can't share is refused, another is planned.
        await pilot.press("escape", "1", "a", "a")
        await reads("2 ticked")
        await type_into(pilot, screen, "f-train-steps", "6")
        await type_into(pilot, screen, "f-batch-size", "7")
        await reads("see the form: size", "a global batch must divide by 2 replicas")
        await pilot.press("ctrl+l")
        assert runs.all_runs() == []
        await type_into(pilot, screen, "f-batch-size", "8")
        await reads("8 global = 4 per slot × 2 slots", "train.steps=6")
        await pilot.press("ctrl+s")
        await reads("Save")
        await pilot.press(*"tiny", "enter")
        await until(pilot, lambda: [*paths.home().rglob("tiny.toml")])

        # It trains on both, and is seen to the end.
        await pilot.press("ctrl+l")
        await until(pilot, runs.all_runs)
        (two,) = runs.all_runs()
        await reads(two.id, "completed", "ranks ─ 2")
        assert [len(losses(two, rank)) for rank in (0, 1)] == [6, 6]
        await pilot.press("escape")
        await reads("✓", "100 %")

        # A long run on one of them is stopped from the list, and goes on for three steps more.
        await pilot.press("escape", "1", "down", "space")
        await reads("1 ticked")
        await type_into(pilot, screen, "f-train-steps", "1000000")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(runs.all_runs()) == 2)
        long = next(run for run in runs.all_runs() if run.id != two.id)
        await until(pilot, lambda: len(losses(long)) > 3)
        await pilot.press("escape", "escape", "4", "s")
        await reads("save")
        await pilot.press("y")
        await reads("2 earlier", "last checkpoint")
        steps = max(e["step"] for e in events(long, 0) if e["kind"] == "step")
        await pilot.press("u")
        await reads("Attempt 1 stopped", f"after step {steps}")
        await pilot.press(*["backspace"] * 7, *str(steps + 3), "enter")
        await until(pilot, lambda: long.state().attempt == 2 and not long.state().live)
        assert [e["steps"] for e in events(long, 0) if e["kind"] == "end"] == [steps, steps + 3]

        # Both runs are compared; the form is what it was; what is removed goes from the disk.
        await pilot.press("escape", "escape", "4")
        await reads("2 earlier", "✓")
        await pilot.press("home", "m", "down", "m", "c")
        await reads("differences ─ 2 in settings", "completed", two.id, long.id, str(steps + 3))
        await pilot.press("escape")
        await pilot.press("escape", "4", "home", "e")
        await reads(f"train.steps={steps + 3}")
        await pilot.press("escape", "4", "end", "x")
        await reads("Remove")
        await pilot.press("y")
        await until(pilot, lambda: not two.path.exists())
        assert long.path.exists()


async def test_a_panel_that_was_closed_comes_back_to_what_runs():
    async with panel(slots(1), sets=TINY) as (pilot, screen):
        await type_into(pilot, screen, "f-train-steps", "1000000")
        await pilot.press("ctrl+l")
        await until(pilot, runs.all_runs)
        (run,) = runs.all_runs()
        await until(pilot, lambda: losses(run))
    assert run.state().live
    async with panel(slots(1)) as (pilot, screen):
        await until(pilot, lambda: run.id in screen_text(pilot.app))
        await pilot.press("escape", "4", "enter")
        await until(pilot, lambda: "running" in screen_text(pilot.app))
        await pilot.press("s", "y")
        await until(pilot, lambda: run.state().state == "stopped")
