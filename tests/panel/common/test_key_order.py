"""Keys that arrive in a burst, as over a slow connection, have the same effect as typed slowly."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.events import Key, Paste
from textual.widgets import Input

from gpu_engine.runs.create import create_run
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.help import HelpScreen
from gpu_panel.common.key_order import KeyOrder
from gpu_panel.launch.devices import DevicesPane

from ...conftest import gpus, slots
from ...plans import plan
from ..panel_kit import panel, settled, until

pytestmark = pytest.mark.usefixtures("home")


def burst(app, *keys: str) -> None:
    """Send all keys before the app runs again."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


async def test_what_is_typed_after_tab_goes_into_the_next_field():
    async with panel(slots(2)) as (pilot, screen):
        screen.bring_forward("form")
        first = screen.query_one("#f-batch-size", Input)
        first.focus()
        await pilot.pause()
        burst(pilot.app, "home", "ctrl+k", *"64", "tab", "tab", "home", "ctrl+k", *"2")
        await until(pilot, lambda: screen.draft.value("batch.accumulate") == 2)
        await settled(pilot, screen)
        assert screen.draft.value("batch.size") == 64


async def test_launch_does_not_overtake_the_number_before_it(monkeypatch):
    launched = []
    monkeypatch.setattr("gpu_engine.launching.launcher.start", lambda prepared: launched.append(
        prepared) or create_run("x", "", plan())[0])
    async with panel(slots(2)) as (pilot, screen):
        screen.bring_forward("form")
        screen.query_one("#f-batch-size", Input).focus()
        await pilot.pause()
        burst(pilot.app, "home", "ctrl+k", *"6400", "ctrl+l")
        await until(pilot, lambda: launched)
        assert launched[0].spec.batch.size == 6400


async def test_a_dialog_gets_the_answer_that_was_typed_ahead():
    async with panel(gpus(2)) as (pilot, screen):
        screen.query_one(DevicesPane).focus()
        await pilot.pause()
        before = list(screen.draft.ids)
        assert "0" in before
        burst(pilot.app, "question_mark", "down", "escape", "space")
        await until(pilot, lambda: screen.draft.ids != before)
        assert screen.draft.ids == [i for i in before if i != "0"]
        assert pilot.app.screen is screen
        burst(pilot.app, "question_mark", "escape", "question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))


async def test_pasted_text_keeps_its_place_too():
    async with panel(slots(2)) as (pilot, screen):
        screen.bring_forward("form")
        screen.query_one("#f-batch-size", Input).focus()
        await pilot.pause()
        burst(pilot.app, "tab", "tab", "home", "ctrl+k")
        pilot.app.post_message(Paste("4"))
        await until(pilot, lambda: screen.draft.value("batch.accumulate") == 4)


async def test_a_key_whose_place_has_closed_holds_up_nothing():
    async with panel(slots(2)) as (pilot, screen):
        pilot.app.push_screen(Confirm("Sure?", "Really?", yes="Do it"))
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        screen.bring_forward("form")
        screen.query_one("#f-batch-size", Input).focus()
        burst(pilot.app, "escape", "end", *"0")
        await until(pilot, lambda: screen.draft.value("batch.size") == 320)


async def test_a_key_that_still_waits_as_the_last_screen_closes_is_dropped():
    handled: list[Key | Paste] = []

    async def handle(event: Key | Paste) -> None:
        handled.append(event)

    await KeyOrder(App[None](), handle).take(Key("a", "a"))
    assert handled == []
