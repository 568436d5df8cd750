"""A choice between options takes as many lines as it needs."""

from __future__ import annotations

from textual.widgets import OptionList

from gpu_panel.common.choice import Choice
from gpu_panel.common.help import HelpScreen

from ...conftest import slots
from ..machines import shared_machine
from ..panel_kit import on_top, panel, press, says, screen_text, settled, shown, until
from ..run_kit import listed


async def test_a_choice_that_takes_two_lines_is_clicked_where_it_stands():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=(160, 48)) as (pilot, screen):
        screen.bring_forward("form")
        mode = screen.query_one("#f-parallel-mode", Choice)
        mode.styles.width = 24
        await pilot.pause()
        assert mode.size.height == 2
        await pilot.click(mode, offset=(3, 1))
        await settled(pilot, screen)
        assert mode.value == "multinode" or screen.draft.value("parallel.mode") == mode.value
        lines = [strip.text.rstrip() for strip in mode.render_lines(mode.size.region)]
        assert lines[1].lstrip()[:1] == "●"


async def test_enter_lists_all_and_down_goes_to_the_next_field():
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=(80, 24)) as (pilot, screen):
        await pilot.press("2")
        task = screen.query_one("#task-choice", Choice)
        assert screen.focused is task
        assert shown(task).endswith("▾")
        await pilot.press("down")  # a field further on
        await settled(pilot, screen)
        assert screen.focused is not task
        await pilot.press("up", "enter")
        await says(pilot, "own task class …")
        await pilot.press("escape")
        await on_top(pilot, screen)
        assert screen.query_one("#f-task-use").display is False
        mode = screen.query_one("#f-parallel-mode", Choice)
        mode.focus()
        await pilot.press("enter")
        await says(pilot, "one process, all ticked devices")
        await pilot.press(*"one process, all")
        # The form behind the list names every mode, so only the list can say what is left.
        await until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count == 1)
        await press(pilot, screen, "enter")
        assert screen.draft.value("parallel.mode") == mode.value == "dp"
        await press(pilot, screen, "left")
        assert screen.draft.value("parallel.mode") == "single"


# --- j and k in every list, h and l where ← and → do something; a key that is off says why ---


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


async def test_a_key_that_is_off_says_why_in_the_list_and_on_the_run_screen():
    run = listed("completed")
    async with panel(slots(1), notifications=True) as (pilot, screen):
        await until(pilot, lambda: screen.runs.line_at_cursor)
        screen.runs.focus()
        await pilot.press("s")
        await until(pilot, lambda: "Run 3f2a can't be stopped: it is completed" in " ".join(
            screen_text(pilot.app).split()))
        pilot.app.clear_notifications()
        screen.runs.open(run.run)
        await until(pilot, lambda: getattr(pilot.app.screen, "_was_live", True) is False)
        await until(pilot, lambda: "can't be stopped" not in screen_text(pilot.app))
        await pilot.press("s")
        await until(pilot, lambda: "can't be stopped: it is completed" in " ".join(
            screen_text(pilot.app).split()))
