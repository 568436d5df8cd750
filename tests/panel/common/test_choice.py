"""A choice between options takes as many lines as it needs."""

from __future__ import annotations

import pytest

from gpu_panel.common.choice import Choice, ChoiceMenu
from gpu_panel.launch.fields import OWN_COMMAND

from ..machines import shared_machine
from ..panel_kit import panel, screen_text, settled, shown, until

pytestmark = pytest.mark.usefixtures("home")


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


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_enter_opens_a_menu_and_down_goes_to_the_next_field(size):
    machine, sampler = shared_machine()
    async with panel(machine, sampler=sampler, size=size) as (pilot, screen):
        await pilot.press("2")
        task = screen.query_one("#task-choice", Choice)
        assert screen.focused is task
        assert shown(task).endswith("▾")
        await pilot.press("down")  # no menu: a field further on
        await settled(pilot, screen)
        assert screen.focused is not task
        assert pilot.app.screen is screen
        await pilot.press("up", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceMenu))
        assert "own task class …" in screen_text(pilot.app)
        assert pilot.app.screen.query_one("OptionList").region.y == task.region.bottom
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert screen.query_one("#f-task-use").display is False
        await pilot.press("space", "end", "enter")  # typed ahead
        await until(pilot, lambda: task.value == OWN_COMMAND)
        await settled(pilot, screen)
        assert screen.query_one("#f-task-command").display

        mode = screen.query_one("#f-parallel-mode", Choice)
        mode.focus()
        await pilot.press("enter")
        await until(pilot, lambda: "one process, all ticked devices" in screen_text(pilot.app))
        menu = pilot.app.screen.query_one("OptionList")
        assert menu.region.bottom <= size[1]
        await pilot.press("up", "space")
        await settled(pilot, screen)
        assert screen.draft.value("parallel.mode") == mode.value == "dp"
        await pilot.press("left")
        await settled(pilot, screen)
        assert screen.draft.value("parallel.mode") == "single"
