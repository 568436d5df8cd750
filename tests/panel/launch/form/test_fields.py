"""The fields below "more"."""

from __future__ import annotations

import pytest
from textual.events import Key
from textual.widgets import Input

from gpu_engine.spec.schema import keys
from gpu_panel.common import key_order
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch.form.fields import FIELDS, NO_FIELD, rows_of
from gpu_panel.launch.form.fieldset import More

from ....conftest import gpus
from ...panel_kit import open_more, panel, problems_below, settled, shown, type_into, until

pytestmark = pytest.mark.usefixtures("home")

def test_every_key_has_a_field_or_is_known_to_have_none():
    assert set(keys()) - set(FIELDS) == NO_FIELD


def test_a_key_that_has_no_place_in_the_table_gets_a_field_from_the_schema():
    """The field of a key that the table does not name."""
    (steps,), (mode,), (tf32,), (best,) = (
        row.fields for row in rows_of([keys()[k] for k in (
            "train.checkpoint_every", "batch.meaning", "amp.tf32", "train.best")]))
    assert (steps.label, steps.options) == ("checkpoint every", ())
    assert steps.help == "Steps between checkpoints; 0: save only at the end."
    assert mode.options == (("global", "global"), ("per_gpu", "per_gpu"))
    assert tf32.options == (("false", "no"), ("true", "yes"))
    assert (best.width, steps.width) == (0, 9)


async def test_they_are_drawn_when_they_are_needed_and_show_the_draft(monkeypatch):
    monkeypatch.setattr(key_order, "PATIENCE", 0.01)  # drawing them takes longer
    monkeypatch.setattr(key_order, "LONGEST", 10_000)
    async with panel(gpus(2), sets=("train.seed=7", "parallel.mode=single")) as (pilot, screen):
        assert not screen.query("#f-train-seed")
        screen.query_one("CollapsibleTitle").focus()
        await pilot.pause()
        # Typed ahead, as over a slow connection.
        for key in ("enter", "tab", *"abc", "tab", "end", "5"):
            pilot.app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: screen.draft.value("train.seed") == 75)
        assert screen.draft.value("name") == "abc"
        seed, timeout = (screen.query_one(f"#f-{k}", Input)
                         for k in ("train-seed", "parallel-timeout"))
        assert (seed.value, seed.placeholder) == ("75", "0")
        assert not timeout.display  # a single rank waits for no other
        await settled(pilot, screen)
        screen.query_one("CollapsibleTitle").focus()
        await pilot.press("enter")
        await until(pilot, lambda: not seed.region)
        await pilot.press("enter")
        await until(pilot, lambda: seed.region)
        assert seed.value == "75"


async def test_launch_goes_to_a_problem_there():
    async with panel(gpus(2)) as (pilot, screen):
        screen.draft.put("train.keep", "1")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: getattr(screen.focused, "id", "") == "f-train-keep")
        assert problems_below(screen) == ["✗ keep newest: expected a whole number at least 2"]
        assert not screen.query_one(More).collapsed


@pytest.mark.timeout(180)
async def test_variables_are_typed_as_before_a_command():
    async with panel(gpus(2), sets=("run.env.NCCL_DEBUG=two words",)) as (pilot, screen):
        await open_more(screen)
        await settled(pilot, screen)
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


@pytest.mark.timeout(180)
async def test_what_is_typed_there_is_planned_and_a_word_stands_for_0():
    sets = ("train.hang_timeout=900", "train.restarts=0", "train.clip=1")
    async with panel(gpus(2), sets=sets) as (pilot, screen):
        await open_more(screen)
        await settled(pilot, screen)
        boxes = {k: screen.query_one(f"#f-train-{k}", Input) for k in (
            "clip", "restarts", "hang_timeout", "checkpoint_every", "eval_every")}
        assert boxes["clip"].value in ("1", "1.0")
        assert boxes["restarts"].value == "off"
        assert (boxes["eval_every"].value, boxes["eval_every"].placeholder) == ("", "each epoch")
        assert boxes["hang_timeout"].placeholder == "off"
        await type_into(pilot, screen, "f-train-clip", "Off")
        await type_into(pilot, screen, "f-train-hang_timeout", "0")
        await type_into(pilot, screen, "f-train-checkpoint_every", "at end")
        assert boxes["hang_timeout"].value == "0"  # what is typed stays
        spec = screen.review.prepared.spec.train
        assert (spec.clip, spec.hang_timeout, spec.checkpoint_every) == (0, 0, 0)
        await type_into(pilot, screen, "f-train-clip", "of")
        assert [p.key for p in screen.review.problems] == ["train.clip"]
        await type_into(pilot, screen, "f-train-clip", "1")
        await type_into(pilot, screen, "f-train-hang_timeout", "900")
        await type_into(pilot, screen, "f-run-log_mb", "8")
        await type_into(pilot, screen, "f-train-weight_decay", "0.1")
        choice = screen.query_one("#f-parallel-find_unused")
        assert choice.display
        choice.choose("true")
        await settled(pilot, screen)
        spec = screen.review.prepared.spec
        assert (spec.train.hang_timeout, spec.run.log_mb, spec.parallel.find_unused,
                spec.train.weight_decay) == (900.0, 8, True, 0.1)
        for said in ("train.hang_timeout=900", "run.log_mb=8", "parallel.find_unused=true"):
            assert said in screen.review.plan.lines[0]
        await type_into(pilot, screen, "f-train-hang_timeout", "-1")
        assert [p.key for p in screen.review.problems] == ["train.hang_timeout"]
        screen.form.query_one("#f-parallel-mode").choose("single")
        await settled(pilot, screen)
        assert not choice.display  # a single rank waits for no other


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_escape_is_told_where_digits_would_be_typed(size):
    async with panel(gpus(2), size=size) as (pilot, screen):
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
