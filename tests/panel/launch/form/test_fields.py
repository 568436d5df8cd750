"""The fields that the schema makes."""


import pytest
from textual.widgets import Input

from gpu_engine.spec.schema import keys
from gpu_panel.common.choice import Choice
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch.fields import FIELDS, NO_FIELD, PARAMS, Fieldset

from ....common.test_values import OTHER, SOURCE
from ....conftest import gpus, slots
from ...panel_kit import (
    panel,
    press,
    problems_below,
    screen_text,
    settled,
    shown,
    type_into,
    until,
)


def test_every_key_has_a_field_or_is_known_to_have_none():
    assert set(keys()) - set(FIELDS) == NO_FIELD


@pytest.mark.timeout(180)
async def test_variables_are_typed_as_before_a_command():
    async with panel(gpus(2), sets=("run.env.NCCL_DEBUG=two words",)) as (pilot, screen):
        box = screen.query_one("#f-run-env", Input)
        assert box.value == "NCCL_DEBUG='two words'"
        await type_into(pilot, screen, "f-run-env", "NCCL_DEBUG=INFO HF_HOME='/a b'")
        plan = screen.review.plan
        assert plan.spec.run.env == {"NCCL_DEBUG": "INFO", "HF_HOME": "/a b"}
        assert plan.processes[0].env["HF_HOME"] == "/a b"
        assert "--set 'run.env.HF_HOME=/a b'" in plan.lines[0]
        await type_into(pilot, screen, "f-run-env", "NCCL_DEBUG")
        assert [p.key for p in screen.review.problems] == ["run.env"]
        await type_into(pilot, screen, "f-run-env", "RANK=1")
        assert problems_below(screen) == ["✗ RANK: gpu-panel itself sets it for each rank; "
                                          "leave it out"]


async def test_escape_is_told_where_digits_would_be_typed():
    async with panel(gpus(2), size=(80, 24)) as (pilot, screen):
        await pilot.press("2")
        bar = screen.query_one(KeyBar)
        await until(pilot, lambda: "^l launch" in shown(bar))
        assert "leave field" not in shown(bar)
        assert "? keys" in shown(bar)
        screen.query_one("#f-batch-size").focus()
        await until(pilot, lambda: "esc leave field" in shown(bar))
        assert "? keys" not in shown(bar)  # it would be typed
        assert len(bar.shown) <= 8
        await pilot.press("escape", "1")
        await until(pilot, lambda: screen.focused is screen.devices)
        assert "leave field" not in shown(bar)
        assert screen.query_one("#f-batch-size", Input).value == "32"


async def test_what_is_typed_is_planned_and_only_what_a_mode_uses_is_shown():
    sets = ("train.hang_timeout=900", "train.restarts=0")
    async with panel(gpus(2), sets=sets) as (pilot, screen):
        assert screen.query_one("#f-train-hang_timeout", Input).value == "900.0"
        assert screen.query_one("#f-train-eval_every", Input).placeholder == "0"
        await type_into(pilot, screen, "f-train-clip", "1")
        await type_into(pilot, screen, "f-train-weight_decay", "0.1")
        await type_into(pilot, screen, "f-train-epochs", "2")
        assert screen.query_one("#f-train-steps", Input).value == ""  # one or the other
        choice = screen.query_one("#f-parallel-find_unused")
        assert choice.display
        choice.choose("true")
        await settled(pilot, screen)
        spec = screen.review.prepared.spec
        assert (spec.train.hang_timeout, spec.train.clip, spec.train.weight_decay,
                spec.train.epochs, spec.parallel.find_unused) == (900.0, 1.0, 0.1, 2, True)
        for said in ("train.weight_decay=0.1", "train.epochs=2", "parallel.find_unused=true"):
            assert said in screen.review.plan.lines[0]
        await type_into(pilot, screen, "f-train-hang_timeout", "-1")
        assert [p.key for p in screen.review.problems] == ["train.hang_timeout"]
        screen.query_one("#f-parallel-mode").choose("single")
        await settled(pilot, screen)
        assert not choice.display  # a single rank waits for no other


# --- A task's parameters of any type in the form: choices, lists and tables, and their problems ---


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
        await press(pilot, screen, "right")
        assert screen.draft.value("task.params.kind") == "a"
        await press(pilot, screen, "left")
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
        await until(pilot, lambda: "model_number_8" in screen_text(pilot.app).partition("🔎")[2])
        await pilot.press("8")
        await until(pilot, lambda: "model_number_1" not in screen_text(pilot.app).split("🔎")[1])
        await pilot.press("enter")
        await until(pilot, lambda: screen.draft.value("task.params.model") == "model_number_8")
        await settled(pilot, screen)
        assert not screen.review.problems
