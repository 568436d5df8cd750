"""A task's parameters of any type in the form: choices, lists and tables, and their problems."""

import pytest

from gpu_panel.common.choice import Choice
from gpu_panel.launch.fields import PARAMS, Fieldset

from ....common.test_values import OTHER, SOURCE
from ....conftest import slots
from ...panel_kit import panel, problems_below, says, screen_text, settled, type_into, until


@pytest.fixture
def use(tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "mine.py").write_text(SOURCE)
    return f"{tmp_path / 'mine.py'}:Mine"


def box(screen, name):
    return screen.query_one(Fieldset)._widgets[PARAMS + name]


async def test_each_type_has_its_field(use):
    sets = (f"task.use={use}", "task.params.opt=SGD", "task.params.weights={a = 1}")
    async with panel(slots(1), "single", sets=sets, size=(80, 24)) as (pilot, screen):
        await until(pilot, lambda: screen.query_one(Fieldset)._params)
        await settled(pilot, screen)
        assert {n: box(screen, n).value for n in ("size", "kind", "depth", "opt", "level", "far",
                                                  "flag")} == {
            "size": "small", "kind": "", "depth": "50", "opt": "SGD", "level": "HIGH",
            "far": "ONE", "flag": ""}
        assert all(isinstance(box(screen, n), Choice) for n in ("size", "opt", "far"))
        assert box(screen, "shape").placeholder == "[3, 4]"
        assert box(screen, "sizes").placeholder == "[1, 2]"
        assert box(screen, "folder").placeholder == "data"
        assert box(screen, "weights").value == "{a = 1}"
        assert not screen.review.problems

        box(screen, "kind").focus()
        await pilot.press("right")
        await settled(pilot, screen)
        assert screen.draft.value("task.params.kind") == "a"
        await pilot.press("left")
        await settled(pilot, screen)
        assert screen.draft.value("task.params.kind") is None
        await type_into(pilot, screen, box(screen, "shape").id, "5,6")
        assert screen.draft.value("task.params.shape") == [5, 6]
        await type_into(pilot, screen, box(screen, "weights").id, "{'b': 2.5}")
        assert screen.draft.value("task.params.weights") == {"b": 2.5}
        assert not screen.review.problems
        plan = screen.review.plan
        assert "task.params.shape=[5, 6]" in plan.lines[0]

        await type_into(pilot, screen, box(screen, "sizes").id, "1, two")
        assert any("expected a list of whole numbers; two does not fit" in p
                   for p in problems_below(screen))
        assert screen.review.plan is None
        box(screen, "sizes").focus()
        await pilot.pause()
        shown = screen_text(pilot.app).replace("│", " ").replace("Launch  ^l", "")
        assert "a list of whole numbers; two does not fit" in " ".join(shown.split())


async def test_what_is_too_wide_to_stand_side_by_side_is_chosen_from_a_menu(tmp_path):
    names = ", ".join(f'"model_number_{i}"' for i in range(9))
    (tmp_path / "wide.py").write_text(
        "from typing import Literal\nclass Wide(Task):\n"
        f"    model: Literal[{names}] = \"model_number_3\"\n")
    sets = (f"task.use={tmp_path / 'wide.py'}:Wide", "task.params.model=model_number_77")
    async with panel(slots(1), "single", sets=sets) as (pilot, screen):
        await until(pilot, lambda: screen.query_one(Fieldset)._params)
        await settled(pilot, screen)
        field = box(screen, "model")
        assert isinstance(field, Choice)
        assert "model_number_77" in screen_text(pilot.app)
        assert "expected one of model_number_0" in problems_below(screen)[0]
        told = screen.query_one(Fieldset).help_of(field)
        assert "one of model_number_0, model_number_1" in told
        field.focus()
        await pilot.press("enter")
        await says(pilot, "model_number_8")
        await pilot.press("8")
        await until(pilot, lambda: "model_number_1" not in screen_text(pilot.app).split("🔎")[1])
        await pilot.press("enter")
        await until(pilot, lambda: screen.draft.value("task.params.model") == "model_number_8")
        await settled(pilot, screen)
        assert not screen.review.problems
