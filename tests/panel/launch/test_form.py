"""The form takes the place of the runs and gives it back; what its keys and a tick do."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from gpu_panel.common.choice import Choice
from gpu_panel.launch.fields import Fieldset

from ...conftest import gpus, slots
from ..panel_kit import panel, screen_text, settled, until
from .runs.test_again import ended
from .runs.test_pane import at_the_runs

pytestmark = pytest.mark.usefixtures("home")


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


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_each_field_that_is_shown_has_a_letter_of_its_own(size):
    async with panel(gpus(2), size=size) as (_, screen):
        found = screen.query_one(Fieldset).letters()
        assert len(set(found.values())) == len(found) > 36
        assert all(found.values())
        assert found[screen.query_one("#f-train-lr")] == "l"


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_a_letter_goes_to_its_field_however_fast_it_is_typed(size):
    async with panel(gpus(2), size=size) as (pilot, screen):
        await pilot.press("g", "l", "0", ".", "5")
        await settled(pilot, screen)
        assert screen.draft.value("train.lr") == 0.5
        assert screen.focused is screen.query_one("#f-train-lr")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "Mode  m" in screen_text(pilot.app))
        await pilot.press("m")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        await until(pilot, lambda: "Mode   ○" in screen_text(pilot.app))
        await pilot.press("g", "escape")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        assert screen.draft.mode == "ddp"
        assert not list(pilot.app._notifications)
        await pilot.press("g", "Z")
        await until(pilot, lambda: [n.message for n in pilot.app._notifications])
        said = [n.message for n in pilot.app._notifications][-1]
        assert said.startswith("No field has the letter Z; there are ")
        assert {"l", "m"} <= set(said.partition("there are ")[2].split())


# --- ticks, and what they do to the mode --------------------------------------------------------

async def test_a_second_tick_turns_single_into_ddp_and_back_and_says_so():
    async with panel(gpus(3), command=("true",), notifications=True) as (pilot, screen):
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")
        await pilot.press("plus")
        await settled(pilot, screen)
        assert (screen.draft.ids, screen.draft.mode) == (["0", "1"], "ddp")
        assert screen.query_one("#f-parallel-mode", Choice).value == "ddp"
        await until(pilot, lambda: "2 devices: DDP" in screen_text(pilot.app))
        await pilot.press("minus")
        await settled(pilot, screen)
        assert (screen.draft.ids, screen.draft.mode) == (["0"], "single")


async def test_a_mode_that_the_person_has_chosen_stays():
    async with panel(gpus(2), command=("true",)) as (pilot, screen):
        await pilot.press("plus")
        await settled(pilot, screen)
        screen.query_one("#f-parallel-mode", Choice).choose("single")
        await settled(pilot, screen)
        assert screen.draft.mode == "single"
        assert "single trains on one device and 2 are chosen" in screen_text(pilot.app)
        await pilot.press("minus", "plus")
        await settled(pilot, screen)
        assert screen.draft.mode == "single"
    async with panel(gpus(2), "ddp", sets=("parallel.mode=single", "devices.ids=0")) as (
            pilot, screen):
        await pilot.press("plus")
        await settled(pilot, screen)
        assert (screen.draft.ids, screen.draft.mode) == (["0", "1"], "single")


async def test_a_script_is_on_two_devices_after_one_key():
    """Typed before the devices have been looked at long enough to say which is free."""
    async with panel(gpus(3), command=("true",), ready=False) as (pilot, screen):
        await until(pilot, lambda: screen.draft.picks and screen.source.inventory)
        await pilot.press("plus")
        await until(pilot, lambda: screen.review is not None and screen.review.plan is not None)
        await settled(pilot, screen)
        assert [len(screen.draft.ids), screen.draft.mode] == [2, "ddp"]


# --- a run again --------------------------------------------------------------------------------

async def test_again_is_ready_for_another_learning_rate():
    ended()
    async with panel(slots(2)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await pilot.press("e")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-train-lr"))
        await pilot.press("3", "e", "minus", "4")
        await settled(pilot, screen)
        assert screen.draft.value("train.lr") == 3e-4
        assert screen.draft.value("batch.size") == 48


@pytest.mark.parametrize(("command", "after"), [
    ("python t.py --lr 0.1 --steps 9", "python t.py --lr X --steps 9"),
    ("python t.py --steps=9 name=a", "python t.py --steps=X name=a"),
    ("python t.py --fast", "python t.py --fastX"),
])
async def test_of_a_command_the_value_that_mostly_varies_is_replaced(command, after):
    async with panel(slots(1), command=tuple(command.split())) as (pilot, screen):
        screen.form.enter_to_vary()
        await settled(pilot, screen)
        await pilot.press("X")
        await settled(pilot, screen)
        assert screen.query_one("#f-task-command", Input).value == after
