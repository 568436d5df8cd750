"""Edits are undone and done again, alone and on the screen."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import Input

from gpu_panel.launch.edits import Edits, State

from ...conftest import gpus
from ..panel_kit import panel, screen_text, settled, type_into

KEYS = ["train.lr", "train.seed", "batch.size", "devices.ids"]


def changed(state: State, key: str, value: object) -> State:
    data = copy.deepcopy(dict(state.data))
    section, name = key.split(".")
    data.setdefault(section, {})[name] = value
    return State(data, {}, state.by_hand or section == "devices")


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3), st.booleans()), max_size=12))
def test_undoing_everything_goes_back_through_every_state(edits):
    state = State({"train": {"lr": 0.1}}, {}, False)
    known = Edits(state)
    states = [state]
    for key, value, leaves in edits:
        now = changed(state, key, value)
        if leaves:
            known.seal()
        known.note(now)
        if now.data != state.data:
            states.append(now)
        state = now
    seen = [state.data]
    while (before := known.undo()) is not None:
        seen.append(before.data)
    assert seen[-1] == states[0].data
    assert all(data in [s.data for s in states] for data in seen)
    back = [seen[-1]]
    while (after := known.redo()) is not None:
        back.append(after.data)
    assert back == seen[::-1]


def test_typing_on_in_one_field_is_one_edit_until_it_is_left():
    start = State({}, {}, False)
    known = Edits(start)
    for value in (1, 12, 128):
        known.note(state := changed(start, "batch.size", value))
    known.seal()
    known.note(changed(state, "batch.size", 7))
    assert known.undo() == state
    assert known.undo() == start
    assert known.undo() is None
    assert known.redo() == state
    known.note(changed(state, "train.seed", 1))  # what was undone before is gone
    assert not known.future


def test_devices_that_were_looked_up_later_are_not_forgotten():
    start = State({"devices": {"pick": 2}}, {}, False)
    known = Edits(start)
    known.note(state := changed(start, "train.seed", 1))
    known.looked_up(State({**state.data, "devices": {"ids": ["0", "1"]}}, {}, False))
    assert known.undo() == State({"devices": {"ids": ["0", "1"]}}, {}, False)


@pytest.mark.usefixtures("home")
async def test_fields_choices_ticks_and_tasks_are_undone_and_redone():
    async with panel(gpus(3)) as (pilot, screen):
        size = screen.query_one("#f-batch-size", Input)
        assert "undo" not in screen_text(pilot.app)
        await type_into(pilot, screen, "f-batch-size", "48")
        await pilot.press("escape", "down", "down", "space")  # tick GPU 2
        await settled(pilot, screen)
        screen.query_one("#f-parallel-mode").choose("dp")
        await settled(pilot, screen)
        task = screen.draft.value("task.use")
        screen.query_one("#task-choice").choose("own command")
        await settled(pilot, screen)
        assert screen.draft.value("task.use") is None
        assert "ctrl+/ undo" in screen_text(pilot.app)
        size.focus()
        await pilot.press("ctrl+underscore")  # also from within a field
        await settled(pilot, screen)
        assert screen.draft.value("task.use") == task == screen.query_one("#task-choice").value
        await pilot.press("ctrl+underscore")
        await settled(pilot, screen)
        assert screen.query_one("#f-parallel-mode").value == "ddp"
        assert screen.devices.ticked == ("0", "1", "2")
        await pilot.press("ctrl+underscore")
        await settled(pilot, screen)
        assert screen.devices.ticked == ("0", "1")
        await pilot.press("ctrl+underscore")
        await settled(pilot, screen)
        assert (size.value, screen.draft.changed) == ("32", False)
        assert screen.review.prepared.spec.batch.size == 32
        await pilot.press("ctrl+underscore")
        await pilot.pause()
        assert any("Nothing to undo" in n.message for n in pilot.app._notifications)
        await pilot.press("ctrl+r", "ctrl+r")
        await settled(pilot, screen)
        assert (size.value, screen.devices.ticked) == ("48", ("0", "1", "2"))
        assert "devices.ids=0,1,2" in screen.review.plan.lines[0]
