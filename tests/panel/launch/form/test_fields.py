"""The fields that the schema makes."""

import pytest
from textual.widgets import Input

from gpu_engine.spec.schema import keys
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch.fields import FIELDS, NO_FIELD

from ....conftest import gpus
from ...panel_kit import panel, problems_below, settled, shown, type_into, until


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
