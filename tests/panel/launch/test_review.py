"""The engine's review of a draft, whatever is typed and whatever the machine lacks."""

from types import SimpleNamespace

import pytest
from textual.widgets import Button, Static

from gpu_engine.common.errors import Problem
from gpu_engine.devices.availability import Availability
from gpu_engine.runs import folder as runs
from gpu_engine.spec import presets
from gpu_panel.launch import review as panes_review
from gpu_panel.launch.device_source import Machine
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.fields import FIELDS
from gpu_panel.launch.review import Review, busy_devices, review, sharing_would_help

from ...conftest import slots
from ..panel_kit import panel, problems_below, settled, until


async def test_a_launch_on_a_full_disk_is_refused_by_name(home, monkeypatch):
    async with panel(slots(1)) as (pilot, screen):
        monkeypatch.setattr("gpu_engine.runs.disk_room.LEAST", 1 << 62)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.query_one("#launch", Button).disabled)
        said = str(screen.query_one("#plan-text", Static).content)
        assert f"no space left in {home}/runs" in said
        assert problems_below(screen) == []  # no field is to blame
        assert runs.all_runs() == []
        monkeypatch.undo()
        screen.review_now()
        await settled(pilot, screen)
        assert not screen.query_one("#launch", Button).disabled


ODD = ["", "-1", "1e400", "nan", "[1,2]", "{a=1}", "'x", "\\", "a\x00b:C", "x\ny", "[bold]",
       "./x.py:Foo", "..:X", "{batch.nope}", "a" * 3000, "[["]


@pytest.mark.parametrize("key", list(FIELDS))
def test_nothing_that_can_be_typed_breaks_the_review(key):
    machine = slots(2)
    for text in ODD:
        draft = Draft(None, presets.load("default"))
        draft.tick([d.id for d in machine.devices])
        draft.put(key, text)
        found = review(draft.data, machine, draft.base)
        assert found.plan is not None or all(str(p) for p in found.problems)
        assert isinstance(draft.text(key) + draft.title, str)


async def test_the_answer_about_a_form_that_was_changed_meanwhile_is_asked_for_again(monkeypatch):
    asked, answer = [], panes_review.review

    def changed_meanwhile(data, *about):
        if not asked:
            screen.draft.put("batch.size", "64")
        asked.append(data["batch"]["size"])
        return answer(data, *about)

    async with panel(slots(1), "single") as (pilot, screen):
        await settled(pilot, screen)
        monkeypatch.setattr(panes_review, "review", changed_meanwhile)
        screen.draft.put("batch.size", "many")
        screen.review_now()
        await until(pilot, lambda: len(asked) == 2 and screen.review and screen.review.plan)
        assert asked == ["many", 64]
        assert not problems_below(screen)


async def test_of_cores_only_those_that_a_run_holds_are_asked_about():
    async def judge():
        pass

    machine = slots(3)
    freedom = {"cpu:0": Availability("busy", "80 % used"), "cpu:1": Availability("leased", "held")}
    source = SimpleNamespace(judge=judge, machines=[Machine(None, machine, freedom=freedom)])
    taken = await busy_devices(source, ["cpu:0", "cpu:1", "cpu:2", "gone"])
    assert list(taken) == ["cpu:1"]
    held, other = Problem("devices.ids", "cpu:1", "held"), Problem("batch.size", "x", "a number")
    assert sharing_would_help(Review((held,)), taken)
    assert not sharing_would_help(Review((held, other)), taken)
