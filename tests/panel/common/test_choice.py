"""A choice between options takes as many lines as it needs."""


from gpu_panel.common.choice import Choice

from ..machines import shared_machine
from ..panel_kit import on_top, panel, says, screen_text, settled, shown, until


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
        await until(pilot, lambda: "multi" not in screen_text(pilot.app))
        await pilot.press("enter")
        await settled(pilot, screen)
        assert screen.draft.value("parallel.mode") == mode.value == "dp"
        await pilot.press("left")
        await settled(pilot, screen)
        assert screen.draft.value("parallel.mode") == "single"
