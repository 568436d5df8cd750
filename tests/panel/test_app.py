"""Errors while the panel is open: a driver that hangs, mistakes of a person, faults of ours."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from textual import work
from textual.events import Key
from textual.widgets import Input

from gpu_engine.common.errors import Problem, SpecError
from gpu_panel import app as app_module
from gpu_panel.common.command_dialog import CommandDialog
from gpu_panel.common.dialogs import AskLine, Message
from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.screen import RunScreen

from .. import odd_runs, powers
from ..conftest import gpus, slots
from .panel_kit import StillSampler, on_top, panel, says, screen_text, shown, until


class Hanging(StillSampler):
    """A sampler whose driver never answers, so that even close() hangs."""

    def close(self):
        threading.Event().wait()


async def test_a_driver_that_hangs_is_said_and_does_not_keep_the_panel_open():
    machine = gpus(1)
    sampler = Hanging(machine, age=12.0, problem="the driver has not answered for 12 s")
    async with panel(machine, sampler=sampler) as (pilot, _):
        await says(pilot, "12 s")
        began = time.monotonic()
        await pilot.press("ctrl+q")
    assert time.monotonic() - began < 60, "it would be for ever"


async def test_a_mistake_of_the_persons_has_no_traceback_and_a_fault_of_ours_goes_to_the_log(home):
    async with panel(slots(1)) as (pilot, screen):
        async def mistake():
            raise SpecError([Problem("batch.size", 3, "[bold]no[/]\x1b]52;c;AA\x07")])

        def fault():
            raise RuntimeError("wires crossed")

        for screen.action_fail, said in ((mistake, "[bold]no[/]"), (fault, "wires crossed")):
            assert not (home / "panel.log").exists()
            await pilot.app.run_action("fail", screen)
            await on_top(pilot, Message, said)
            await pilot.press("escape")
            await on_top(pilot, screen)
        assert "Traceback" in (home / "panel.log").read_text()


# --- Odd run folders in the panel: each has a line in the list, and its screen opens ---


async def test_each_is_a_line_with_its_reason_and_can_be_opened():
    good = odd_runs.ended()
    made = odd_runs.make()
    try:
        with powers.root_powers_dropped():
            async with panel(slots(1), size=(160, 60)) as (pilot, screen):
                table = screen.query_one(RunsPane)
                await until(pilot, lambda: table.lines is not None
                            and len(table.lines) == len(made) + 1)
                states = {line.id: line for line in table.lines}
                assert states[good.id].state == "completed"
                for what, (path, words) in made.items():
                    line = states[path.name]
                    told = f"{line.reason} {line.odd}"
                    assert words in told or what == "its plan has another shape", what
                closed = made["it is closed"][0].name
                assert states[closed].state == "unreadable"
                assert "can't be read: permission denied" in shown(table)

                await pilot.press("escape", "4")
                await until(pilot, lambda: table.has_focus)
                for what in ("it is closed", "events are a FIFO", "a log is a FIFO"):
                    table.cursor = [line.id for line in table.lines].index(made[what][0].name)
                    await pilot.press("enter")
                    await on_top(pilot, RunScreen)
                    run_screen = pilot.app.screen
                    await until(pilot, lambda s=run_screen: s.store.caught_up)
                    if what == "it is closed":
                        await says(pilot, "unreadable")
                    await pilot.press("escape")
                    await on_top(pilot, screen)
    finally:
        odd_runs.reopen(made)


# --- keys that are typed ahead ---


@pytest.mark.parametrize("takes", [60.0, 0.02])
async def test_keys_behind_one_that_asks_late_are_its_answer_or_nothing(monkeypatch, takes):
    """Also where the question takes longer to come than a key waits."""
    ready, asked = threading.Event(), threading.Event()
    monkeypatch.setattr(app_module, "KEY_TAKES", takes)

    @work(group="do")
    async def action_note(self):
        asked.set()
        await asyncio.to_thread(ready.wait)
        await self.app.push_screen_wait(AskLine("Name", "", "of the run"))

    monkeypatch.setattr(RunsPane, "action_note", action_note)
    run = odd_runs.ended()
    async with panel(slots(1)) as (pilot, screen):
        table = screen.query_one(RunsPane)
        await until(pilot, lambda: table.lines)
        await pilot.press("4")
        for key in "nxy":
            pilot.app.post_message(Key(key, key))
        await asyncio.to_thread(asked.wait)
        if takes < 1:
            await until(pilot, lambda: pilot.app._typed.empty())
        said = [n.message for n in pilot.app._notifications]
        assert any("typed meanwhile is dropped" in one for one in said) is (takes < 1)
        ready.set()
        await on_top(pilot, AskLine)
        box = pilot.app.screen.query_one(Input)
        await until(pilot, lambda: box.value == ("xy" if takes > 1 else ""))
        pilot.app.post_message(Key("z", "z"))
        await until(pilot, lambda: box.value.endswith("z"))
        await pilot.press("escape")
        await on_top(pilot, screen)
        assert run.path.exists()


async def test_on_a_low_screen_only_the_newest_notification_is_seen_and_above_a_dialogs_fields():
    async with panel(slots(2), size=(80, 24), notifications=True) as (pilot, _):
        app = pilot.app
        app.notify("older", timeout=600)
        app.notify("newer " * 99, timeout=600)
        await says(pilot, "newer newer")
        assert "older" not in screen_text(app)
        assert sum("newer" in row for row in screen_text(app).splitlines()) <= 3
        await pilot.press("Q")
        await on_top(pilot, CommandDialog, "newer newer")
        rows = screen_text(app).splitlines()
        last = max(at for at, row in enumerate(rows) if "newer" in row)
        assert last < min(field.input.region.y for field in app.screen.fields)
