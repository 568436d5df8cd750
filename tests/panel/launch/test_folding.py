"""The form is folded to the lines of what will run, and unfolds where it is wanted."""

from __future__ import annotations

import json

import pytest
from textual.widgets import Button, Input

from gpu_panel import themed
from gpu_panel.common.choice import Choice
from gpu_panel.launch.form.fields import FIELDS, letters
from gpu_panel.launch.plan.texts import summary

from ...conftest import gpus, slots
from ..panel_kit import panel, screen_text, settled, type_into, until
from .runs.test_again import ended
from .runs.test_pane import at_the_runs

pytestmark = pytest.mark.usefixtures("home")


def kept() -> object:
    return json.loads(themed.path().read_bytes()).get("form")


async def test_the_first_panel_shows_all_of_the_form_and_the_next_one_three_lines():
    async with panel(gpus(2)) as (pilot, screen):
        assert screen.form.display
        await until(pilot, lambda: themed.path().exists())
    async with panel(gpus(2)) as (pilot, screen):
        assert not screen.form.display
        plan = screen.plan.region
        frame, *lines, _ = screen_text(pilot.app).splitlines()[plan.y:plan.bottom]
        assert frame.startswith("╭─ Launch ─ preset default ─")
        assert len(lines) == 3
        assert "BytesGPT   DDP   batch 32 global   AMP off   300 steps" in lines[0]
        assert "32 global = 16 per GPU × 2 GPUs" in lines[1]
        assert "GPU 1 → cuda:1 rank 1" in lines[1]
        assert "$ gpu-engine run default --set devices.ids=0,1" in lines[2]
        assert screen.query_one("#launch").region in screen.plan.region
        await pilot.press("2")
        await until(pilot, lambda: screen.form.display and kept() == "whole")
        assert "BytesGPT   DDP" not in screen_text(pilot.app)  # the fields say it
    async with panel(gpus(2)) as (pilot, screen):
        assert screen.form.display


async def test_its_rows_go_to_the_runs(folded):
    async with panel(gpus(4), size=(120, 36)) as (pilot, screen):
        high = screen.lower.region.height
        await pilot.press("2")
        await until(pilot, lambda: screen.form.display)
        await until(pilot, lambda: screen.lower.region.height < high)
        await pilot.press("escape", "4")  # who reads runs has them again
        await until(pilot, lambda: not screen.form.display)
        await until(pilot, lambda: screen.lower.region.height >= high)


async def test_escape_folds_it_and_so_does_a_launch(folded, monkeypatch):
    async with panel(slots(1), command=("true",)) as (pilot, screen):
        await pilot.press("3", "enter")
        await until(pilot, lambda: screen.form.display and screen.form.has_focus_within)
        await pilot.press("escape")
        await settled(pilot, screen)
        assert screen.form.display
        assert screen.devices.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: not screen.form.display)
        await pilot.press("2")
        await until(pilot, lambda: screen.form.display)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.lines)
        await until(pilot, lambda: not screen.form.display and kept() == "folded")


async def test_a_problem_of_a_field_unfolds_it_and_one_of_devices_does_not(folded):
    async with panel(gpus(4)) as (pilot, screen):
        await pilot.press("plus")
        await until(pilot, lambda: screen.form.display)
        assert "✗ a global batch must divide by 3 replicas" in screen_text(pilot.app)
        assert screen.query_one("#launch", Button).disabled
        await pilot.press("plus")
        await until(pilot, lambda: not screen.form.display)
        assert not screen.query_one("#launch", Button).disabled
        await pilot.press("a")
        await settled(pilot, screen)
        assert screen.draft.ids == []
        assert not screen.form.display
        assert "choose at least one device" in screen_text(pilot.app)


async def test_the_field_that_was_used_last_has_the_focus_again(folded):
    async with panel(gpus(2)) as (pilot, screen):
        await pilot.press("2")
        await settled(pilot, screen)
        assert screen.focused.id == "task-choice"
        screen.query_one("#f-batch-size").focus()
        await pilot.press("escape", "escape", "2")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-batch-size"))


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_a_letter_goes_to_its_field_however_fast_it_is_typed(folded, size):
    async with panel(gpus(2), size=size) as (pilot, screen):
        await pilot.press("g", "l", "0", ".", "5")
        await settled(pilot, screen)
        assert screen.draft.value("train.lr") == 0.5
        assert screen.focused is screen.query_one("#f-train-lr")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "Mode  m" in screen_text(pilot.app)
                    and "fport any" in screen_text(pilot.app))
        assert "learning rate" in screen_text(pilot.app)  # its letter is lit there
        await pilot.press("m")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        await until(pilot, lambda: "Mode   " in screen_text(pilot.app))
        await pilot.press("g", "escape")
        await until(pilot, lambda: screen.focused is screen.query_one("#f-parallel-mode"))
        assert screen.draft.mode == "ddp"
        assert not list(pilot.app._notifications)
        await pilot.press("g", "Z")
        await until(pilot, lambda: [n.message for n in pilot.app._notifications])
        said = [n.message for n in pilot.app._notifications][-1]
        assert said.startswith("No field has the letter Z; there are ")
        assert {"l", "m"} <= set(said.partition("there are ")[2].split())


def test_each_field_has_a_letter_of_its_own():
    found = letters((key, field.label) for key, field in FIELDS.items() if key != "task.command")
    there = [letter for letter in found if letter]
    assert len(set(there)) == len(there) >= 36 - 1
    assert found[list(FIELDS).index("train.lr") - 1] == "l"


# --- ticks, and what they do to the mode --------------------------------------------------------

async def test_a_second_tick_turns_single_into_ddp_and_back_and_says_so(folded):
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


async def test_a_mode_that_the_person_has_chosen_stays(folded):
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


async def test_a_script_is_on_two_devices_after_one_key(folded):
    """Typed before the devices have been looked at long enough to say which is free."""
    async with panel(gpus(3), command=("true",), ready=False) as (pilot, screen):
        await until(pilot, lambda: screen.draft.picks and screen.source.inventory)
        await pilot.press("plus")
        await until(pilot, lambda: screen.review is not None and screen.review.plan is not None)
        await settled(pilot, screen)
        assert [len(screen.draft.ids), screen.draft.mode] == [2, "ddp"]


# --- a run again --------------------------------------------------------------------------------

async def test_again_is_ready_for_another_learning_rate(folded):
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


def test_of_a_command_no_more_is_said_than_it_is_told():
    from gpu_panel.launch.draft import Draft

    draft = Draft.of_command(["python", "t.py", "--bs", "{batch.per_gpu}"])
    assert summary(draft).plain == "python t.py --bs {batch.per_gpu}   single   batch 64 global"
    draft.put("task.command", "python t.py")
    assert summary(draft).plain == "python t.py   single"


async def test_what_is_typed_wrong_is_said_in_the_summary_as_it_was_typed(folded):
    async with panel(gpus(2)) as (pilot, screen):
        await type_into(pilot, screen, "f-batch-size", "many")
        await pilot.press("escape", "4")
        await until(pilot, lambda: not screen.form.display)
        assert "batch many global" in screen_text(pilot.app)
