"""What each attempt was asked for, and a mistake of one that does not stick unseen."""

from __future__ import annotations

import json
import os

import pytest

from gpu_engine.common.errors import SpecError
from gpu_engine.places import verbs as launch
from gpu_engine.runs import attempts
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml

from .. import event_lines
from ..command_line import called as engine
from ..conftest import over, slots
from ..plans import plan


def test_a_mistake_is_shown_and_taken_back():
    """With real runs: a command that ends well unless its learning rate is 9."""
    spec = from_dict({"name": "picky", "devices": {"ids": ["cpu:0"]}, "task": {
        "command": ["sh", "-c", "test {lr} != 9", "{seed}"]}})
    run = launch.launch(spec, inventory=slots(1))
    assert over(run).state == "completed"
    failed = engine("resume", run.id, "--set", "train.lr=9", "--set", "train.seed=3")
    assert failed.returncode == 1
    state = run.state()
    assert [(a.number, a.outcome, a.changed) for a in state.attempts] == [
        (1, "completed", ()), (2, "failed", ("train.lr=9.0", "train.seed=3"))]
    shown = engine("show", run.id).stdout
    assert "attempt 2  failed" in shown
    assert "with train.lr=9.0 train.seed=3" in shown

    again = engine("resume", run.id)
    assert again.returncode == 1
    assert run.state().attempts[-1].changed == ()

    half = engine("resume", run.id, "--set", "train.lr=0.5")
    assert half.returncode == 0, half.stderr
    assert attempts.read_spec(run)["train"]["lr"] == 0.5
    assert (run.path / "specs" / "00001.toml").exists()


def trained(train: dict, done: int, each=200) -> runs.Run:
    """A stopped run whose newest checkpoint was saved after `done` steps."""
    spec = from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"}, "train": train,
                      "devices": {"ids": ["cpu:0"]}})
    run, lock = create_run("x", to_toml(spec), plan(1, mode="single"))
    os.close(lock)
    run.write_state(runs.State("stopped", run.id, "x", 1.0))
    for step in (done // 2, done):
        folder = run.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"step": step}))
    event_lines.append(run.events(0), event_lines.line("schedule", {"steps_per_epoch": each}))
    return run


@pytest.mark.parametrize(("train", "change", "words"), [
    ({"steps": 400}, "train.steps=50", "train.steps = 50: 300 steps are done (step-00000300); "
                                       "use 300 or more, or start a new run"),
    ({"steps": 400}, "train.epochs=1", "train.epochs = 1: that is 200 steps, and 300 steps are "
                                       "done (step-00000300); use 2 or more"),
    ({"epochs": 3}, "train.epochs=1", "that is 200 steps, and 300 steps are done"),
    ({"epochs": 3}, "train.steps=299", "300 steps are done")])
def test_fewer_steps_than_are_done_are_refused(train, change, words):
    run = trained(train, 300)
    before = (run.path / "spec.toml").read_text()
    said = engine("resume", run.id, "--set", change)
    assert said.returncode == 2
    assert words in " ".join(said.stderr.split())
    assert run.state().state == "stopped"
    assert (run.path / "spec.toml").read_text() == before
    with pytest.raises(SpecError):
        launch.resume(run, [change])


@pytest.mark.parametrize(("train", "each"), [
    ({"steps": 300}, 200), ({"steps": 301}, 200), ({"epochs": 2}, 200), ({"epochs": 1}, None)])
def test_as_many_or_more_are_not(train, each):
    run = trained(train, 300, each)
    attempts.check_length(run, from_dict(attempts.read_spec(run)))


def test_without_a_checkpoint_it_begins_anew_with_any_length():
    run = trained({"steps": 400}, 300)
    for folder in run.checkpoints.iterdir():
        (folder / "manifest.json").unlink()
    attempts.check_length(run, from_dict({"task": {"use": "a:B"}, "train": {"steps": 1}}))
