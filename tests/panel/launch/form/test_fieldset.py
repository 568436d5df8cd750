"""What a person's own command is not told is neither in the form nor in the plan."""

from __future__ import annotations

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.places.verbs import prepare
from gpu_engine.plan import own_command as cmd
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec, known_keys
from gpu_panel.common.choice import Choice
from gpu_panel.launch.fields import OWN_COMMAND
from gpu_panel.run.headline import what_is_trained

from ....conftest import gpus
from ...panel_kit import panel, press, screen_text, type_into


def plan(*command, devices=3, **sections):
    data = {"task": {"command": list(command)}, "parallel": {"mode": "ddp"},
            "devices": {"ids": [str(i) for i in range(devices)]}} | sections
    return prepare(from_dict(data), inventory=gpus(devices)).plan


def test_every_placeholder_and_key_is_accounted_for():
    keys = {*cmd.TOLD_BY, *cmd.NEVER_TOLD}
    assert keys <= set(known_keys())
    by_key = {name for names in cmd.TOLD_BY.values() for name in names}
    not_of_one_key = {"world_size", "replicas", "nodes", "node_rank", "master_addr", "master_port",
                      "run.dir", "run.name"}
    assert by_key | not_of_one_key == set(cmd.PLACEHOLDERS)


def test_the_run_screen_names_no_batch_that_the_script_never_heard_of():
    told = plan("true", "{batch.per_gpu}", "{amp}", devices=2, batch={"size": 64},
                amp={"dtype": "bf16"})
    assert what_is_trained(told)[1:] == ["DDP×2", "64 global", "bf16"]
    assert what_is_trained(plan("true", devices=2))[1:] == ["DDP×2"]


REFUSED = {
    "amp": {"dtype": "bf16"}, "train": {"lr": 0.1, "epochs": 3, "clip": 1.0, "seed": 5},
    "batch": {"size": 8, "accumulate": 2}, "run": {"python": "/usr/bin/python"}}


def test_what_is_set_and_reaches_nothing_is_refused_with_the_placeholder_for_it(
        tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    with pytest.raises(SpecError) as refused:
        plan("python", "t.py", **REFUSED)
    said = {p.key: p.message for p in refused.value.problems}
    assert said.keys() == {f"{section}.{name}" for section, part in REFUSED.items()
                           for name in part}
    for key, word in (("amp.dtype", "{amp}"), ("train.lr", "{lr}"), ("train.epochs", "{epochs}"),
                      ("batch.size", "{batch.per_gpu}"), ("train.seed", "{seed}")):
        assert f"python t.py is never told it: write {word} where" in said[key]
    assert "no placeholder" in said["train.clip"]
    words = ("{amp}", "{lr}", "{epochs}", "{batch.per_gpu}", "{seed}")
    with pytest.raises(SpecError) as refused:
        plan("python", "t.py", *words, devices=1, **REFUSED)
    assert {p.key for p in refused.value.problems} == {"train.clip", "run.python"}
    of_command = {"grace_most": 5.0, "stop_signal": "SIGTERM", "grad_norm": True}
    task = {"task": {"use": "gpu_engine.tasks.digits:Digits"}, "devices": {"ids": ["0"]},
            "run": of_command}
    with pytest.raises(SpecError) as refused:
        prepare(from_dict(task), inventory=gpus(1))
    assert {p.key for p in refused.value.problems} == {f"run.{name}" for name in of_command}
    assert all("only on a command of your own: leave it out" in p.message
               for p in refused.value.problems)
    assert cmd.left_out(task)["run"] == {}  # of an older version's run, which is resumed


async def test_only_what_the_command_is_told_is_in_the_form_and_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    async with panel(gpus(2), "default", sets=("devices.ids=0",)) as (pilot, screen):
        form = screen.form

        def has(key: str) -> bool:
            return form.query_one("#f-" + key).display

        assert screen.draft.value("train.steps") == 300
        assert has("train-clip")
        assert not has("run-grad_norm")
        screen.query_one("#task-choice", Choice).choose(OWN_COMMAND)
        await type_into(pilot, screen, "f-task-command", "python train.py")
        assert screen.review.problems == ()
        assert screen.review.plan.spec.train == RunSpec().train
        assert screen.draft.to_save(None).batch == RunSpec().batch
        assert not any(map(has, ("train-lr", "batch-size", "amp-dtype", "train-clip",
                                 "run-python")))
        assert all(map(has, ("parallel-mode", "train-restarts", "run-grace", "name")))
        await press(pilot, screen, "escape", "3")
        said = " ".join(screen_text(pilot.app).replace("│", " ").split())
        assert "your command sets its own batch size and lr" in said
        await type_into(pilot, screen, "f-task-command", "python train.py --lr {lr}")
        assert has("train-lr")
        await type_into(pilot, screen, "f-train-lr", "0.5")
        assert screen.review.plan.spec.train.lr == 0.5
        await type_into(pilot, screen, "f-task-command", "python train.py")
        assert has("run-grad_norm")
        (problem,) = screen.review.problems  # it stays to be seen, and is refused
        assert (problem.key, problem.value, has("train-lr")) == ("train.lr", 0.5, True)
        assert "write {lr} where its value belongs" in problem.message
