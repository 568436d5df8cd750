"""j and k in every list, h and l where ← and → do something; a key that is off says why."""

from __future__ import annotations

import pytest

from gpu_engine.common import paths
from gpu_panel.common.help import HelpScreen

from ...conftest import slots
from ..panel_kit import panel, screen_text, until
from ..run_kit import T0, Written, trained


def ended(state='failed') -> Written:
    paths.runs_folder().mkdir(parents=True)
    run = trained(paths.runs_folder())
    run.state(state, ended=T0 + 60)
    run.release()
    return run


async def test_letters_move_in_lists_and_sheets():
    async with panel(slots(3)) as (pilot, screen):
        screen.devices.focus()
        await pilot.press("j", "j", "k")
        assert screen.devices.cursor == 1
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen)
                    and pilot.app.screen.query_one(".sheet").max_scroll_y > 0)
        await pilot.press("j")
        await until(pilot, lambda: pilot.app.screen.query_one(".sheet").scroll_y > 0)


@pytest.mark.parametrize(("key", "said"), [
    ("s", "Run 3f2a can't be stopped: it is failed")])
async def test_a_key_of_the_list_that_is_off_says_why(key, said):
    ended()
    async with panel(slots(1), notifications=True) as (pilot, screen):
        await until(pilot, lambda: screen.runs.line_at_cursor)
        screen.runs.focus()
        await pilot.press(key)
        await until(pilot, lambda: said in " ".join(screen_text(pilot.app).split()))


async def test_a_key_of_the_run_screen_that_is_off_says_why():
    run = ended("completed")
    async with panel(slots(1), notifications=True) as (pilot, screen):
        screen.runs.open(run.run)
        await until(pilot, lambda: getattr(pilot.app.screen, "_was_live", True) is False)
        await pilot.press("s")
        await until(pilot, lambda: "can't be stopped: it is completed" in " ".join(
            screen_text(pilot.app).split()))
