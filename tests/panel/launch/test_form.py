"""The form takes the place of the runs and gives it back; what its keys and a tick do."""


from gpu_panel.common.choice import Choice

from ...conftest import gpus, slots
from ..panel_kit import panel, says, screen_text, settled, until


async def test_it_comes_with_a_key_or_a_click_and_goes_with_escape_or_a_launch():
    async with panel(slots(1), command=("true",)) as (pilot, screen):
        assert not screen.form.display
        assert "true   single" in screen_text(pilot.app)
        await pilot.press("3", "enter")
        await until(pilot, lambda: screen.form.has_focus_within and not screen.lower.display)
        assert screen.focused.id == "task-choice"
        screen.query_one("#f-parallel-mode").focus()
        await pilot.press("escape")
        await until(pilot, lambda: screen.devices.has_focus and screen.form.display)
        await pilot.press("escape")
        await until(pilot, lambda: screen.lower.display and not screen.form.display)
        await pilot.press("2")  # the field that was used last has the focus again
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        await pilot.press("4")
        await until(pilot, lambda: screen.lower.display)
        await pilot.click(screen.plan, offset=(5, 1))
        await until(pilot, lambda: screen.form.has_focus_within)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.lines and screen.runs.has_focus)


async def test_a_field_is_found_by_a_part_of_its_name():
    async with panel(gpus(2), size=(80, 24)) as (pilot, screen):
        await pilot.press("g")
        await says(pilot, "parallel.mode")
        await pilot.press("l", "r")
        await says(pilot, "train.lr_scale")
        await pilot.press("enter")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-train-lr"))
        await pilot.press("0", ".", "5")
        await settled(pilot, screen)
        assert screen.draft.value("train.lr") == 0.5


# --- ticks, and what they do to the mode --------------------------------------------------------

async def test_a_second_tick_turns_single_into_ddp_and_back_and_says_so():
    async with panel(gpus(3), command=("true",), notifications=True) as (pilot, screen):
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")
        await pilot.press("down", "space")
        await settled(pilot, screen)
        assert (screen.draft.ids, screen.draft.mode) == (["0", "1"], "ddp")
        assert screen.query_one("#f-parallel-mode", Choice).value == "ddp"
        await says(pilot, "2 devices: DDP")
        await pilot.press("space")
        await settled(pilot, screen)
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")
        await pilot.press("space")
        screen.query_one("#f-parallel-mode", Choice).choose("single")
        await settled(pilot, screen)
        assert "single trains on one device and 2 are chosen" in screen_text(pilot.app)
        await pilot.press("space", "space")
        await settled(pilot, screen)
        assert screen.draft.mode == "single"  # that the person has chosen stays


# --- a run again --------------------------------------------------------------------------------
