"""Fields that a person's own command does not use: struck out, and left out of the plan."""

from __future__ import annotations

import pytest
from textual.widgets import Static

from gpu_engine.launch.launcher import prepare
from gpu_engine.plan import own_command as cmd
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import known_keys
from gpu_panel.launch.form.more import More
from gpu_panel.run.text.headline import what_is_trained

from ....conftest import gpus, slots
from ...panel_kit import panel, screen_text, settled, type_into

pytestmark = pytest.mark.usefixtures("home")


def plan(*command, devices=3, **sections):
    data = {"task": {"command": list(command)}, "parallel": {"mode": "ddp"},
            "devices": {"ids": [str(i) for i in range(devices)]}} | sections
    return prepare(from_dict(data), inventory=gpus(devices)).plan


@pytest.mark.parametrize(("words", "said"), [
    ((), ["your command is told neither batch size nor lr: it has its own"]),
    (("{lr}",), ["lr 0.002, not scaled"]),
    (("{batch.per_gpu}",), ["64 global = 32 per GPU × 2 GPUs × 1"]),
    (("{batch.per_gpu}", "{lr}", "{seed}"), ["64 global = 32 per GPU × 2 GPUs × 1",
                                             "lr 0.002, not scaled", "told: seed 0"]),
    (("--b={batch.size}", "{amp}", "{epochs}"),
     ["told: batch size 64, amp off, epochs 1"])])
def test_the_plan_says_what_the_command_is_told_and_no_more(words, said):
    assert plan("true", *words, devices=2, batch={"size": 64},
                train={"lr": 0.002}).sentences() == said


def test_a_script_that_is_not_told_of_accumulation_has_no_such_global_batch():
    accumulate = {"size": 64, "accumulate": 2}
    assert plan("true", "{batch.per_gpu}", devices=2, batch=accumulate).sentences() == [
        "told: 16 per GPU"]
    assert plan("true", "{batch.per_gpu}", "{batch.accumulate}", devices=2,
                batch=accumulate).sentences() == ["64 global = 16 per GPU × 2 GPUs × 2",
                                                  "told: accumulate 2"]


def test_what_it_does_not_hear_of_does_not_keep_it_from_running():
    untold = plan("true", batch={"size": 64}, train={"lr_scale": "linear"})
    assert len(untold.ranks) == 3
    prepare(from_dict({"task": {"command": ["true"]}, "devices": {"ids": ["cpu:0"]},
                       "amp": {"dtype": "fp16"}}), inventory=slots(1))
    for word in ("{batch.per_gpu}", "{batch.global}"):
        with pytest.raises(Exception, match="must divide by 3 replicas"):
            plan("true", word, batch={"size": 64})
    with pytest.raises(Exception, match="must divide by 3 replicas"):
        plan("true", "{lr}", batch={"size": 64},
             train={"lr_scale": "linear", "lr_reference_batch": 32})


def test_every_placeholder_and_key_is_accounted_for():
    keys = {*cmd.TOLD_BY, *cmd.NEVER_TOLD}
    assert keys <= set(known_keys())
    by_key = {name for names in cmd.TOLD_BY.values() for name in names}
    not_of_one_key = {"world_size", "replicas", "nodes", "node_rank", "run.dir", "run.name"}
    assert by_key | not_of_one_key == set(cmd.PLACEHOLDERS)


def test_the_run_screen_names_no_batch_that_the_script_never_heard_of():
    told = plan("true", "{batch.per_gpu}", "{amp}", devices=2, batch={"size": 64},
                amp={"dtype": "bf16"})
    assert what_is_trained(told)[1:] == ["DDP×2", "64 global", "bf16"]
    untold = plan("true", devices=2, batch={"size": 64}, amp={"dtype": "bf16"})
    assert what_is_trained(untold)[1:] == ["DDP×2"]


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_the_form_shows_which_fields_the_command_is_not_told(size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command = ("python", "train.py", "--lr", "1e-2")
    sets = ("devices.ids=0", "train.lr=0.002", "batch.size=64")
    async with panel(gpus(1), command=command, sets=sets, size=size) as (pilot, screen):
        form = screen.form
        await screen.query_one(More).draw()

        def untold(key: str) -> bool:
            return form.query_one("#f-" + key).has_class("-untold")

        def struck(label: str) -> bool:
            style, = {s.style for line in screen._compositor.render_strips() for s in line
                      if s.text.strip() == label}
            return bool(style.strike)

        assert all(untold(k) for k in ("train-lr", "batch-size", "batch-meaning", "amp-dtype",
                                       "train-length", "train-seed"))
        assert not any(untold(k) for k in ("parallel-mode", "train-restarts", "run-grace", "name"))
        assert not any(form.query_one("#f-" + k).display
                       for k in ("train-clip", "train-best", "train-keep", "run-python"))
        await pilot.press("3")
        await settled(pilot, screen)
        said = " ".join(screen_text(pilot.app).replace("│", " ").split())
        assert "lr 0.002, not scaled" not in said
        assert "64 global" not in said
        assert "your command is told neither batch size nor lr" in said
        await pilot.press("2")
        form.query_one("#f-train-lr").focus()
        await settled(pilot, screen)
        assert struck("learning rate")
        assert "does not use this: write {lr} where the value should go" in str(
            form.query_one("#field-help", Static).content)
        await type_into(pilot, screen, "f-task-command", "python train.py --lr {lr}")
        assert not untold("train-lr")
        assert not struck("learning rate")
        assert untold("batch-size")
        assert screen.review.plan.sentences() == ["lr 0.002, not scaled"]


async def test_a_task_is_told_everything():
    async with panel(slots(1), "single") as (_, screen):
        await screen.query_one(More).open()
        assert not screen.form.query(".-untold")
        assert screen.form.query_one("#f-train-clip").display
