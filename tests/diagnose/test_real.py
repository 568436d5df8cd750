"""Verdicts on real runs that are made slow in one way, and none on those that are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_engine.diagnose import device_times, steps, verdicts
from gpu_engine.runs.follow import Follower

from ..command_line import called
from ..observe.kit import SCRIPTS, engine_run, observe

pytestmark = pytest.mark.usefixtures("home")
TWO = ("--devices", "cpu:0,cpu:1", "--set", "parallel.mode=ddp")


def views(run):
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    return list(follower.ranks.values())


def verdict(*script: str, options: tuple[str, ...] = ("--devices", "cpu:0")):
    """The verdicts on a script's run, and its ranks."""
    seen = observe("slow.py", *script, bare=False, options=options)
    assert seen.state["state"] == "completed", seen.log()
    ranks = views(seen.run)
    return seen.run, verdicts.of(ranks), ranks


def test_a_slow_loader(home):
    run, found, (rank,) = verdict("loader")
    assert [v.code for v in found] == ["input-bound"]
    assert found[0].figures["seconds_a_step"] >= 0.08
    assert steps.of_run(rank).workers == 0
    shown = called("show", run.id).stdout
    assert f"input-bound: {found[0].text}" in shown
    told = json.loads(called("show", "--json", run.id).stdout)["diagnosis"]
    assert told["verdicts"][0]["figures"] == found[0].figures
    assert told["ranks"][0]["run"]["parts"]["wait"] is None


@pytest.mark.parametrize(("fault", "part"), [("loader", "data"), ("rank", "forward")])
def test_a_slow_rank_is_told_from_the_one_that_waits_for_it(home, fault, part):
    _, found, ranks = verdict(fault, "1", options=TWO)
    assert [(v.code, v.rank) for v in found] == [("straggler", 1)]
    assert found[0].figures[f"{part}_a_step"] >= 0.06  # of 0.1, on a busy machine
    assert steps.of_run(ranks[0]).share("wait") > steps.of_run(ranks[1]).share("wait")


def test_a_slow_rank_of_a_task_is_told_too(home):
    """The engine's own loop tells of its phases."""
    run, state = engine_run(
        *TWO, *(word for key, value in {
            "task.use": f"{Path(__file__).with_name('slow_task.py')}:Slow", "train.steps": 70,
            "train.workers": 0, "batch.size": 8, "train.checkpoint_every": 30}.items()
            for word in ("--set", f"{key}={value}")))
    assert state["state"] == "completed"
    ranks = views(run)
    (found,) = verdicts.of(ranks)
    assert (found.code, found.rank) == ("straggler", 1)
    assert found.figures["data_a_step"] >= 0.06
    for rank in ranks:
        whole = steps.of_run(rank)
        assert [n for n, v in whole.parts.items() if v is None] == []
        assert whole.parts["copy"] == 0
        assert whole.share("rest") < 0.2


@pytest.mark.parametrize("fault", ["save", "disk"])
def test_frequent_saves_and_a_disk_that_sleeps(home, fault):
    _, found, _ = verdict(fault)
    assert [v.code for v in found] == ["saving"]


def test_long_evaluations(home):
    _, found, (rank,) = verdict("eval")
    assert [v.code for v in found] == ["evaluation"]
    assert steps.of_run(rank).parts["eval"] >= 10 * 10 * 0.12


@pytest.mark.parametrize(("script", "options"), [
    ("nothing", ("--devices", "cpu:0")), ("nothing", TWO),
    ("item", ("--devices", "cpu:0"))], ids=["one", "two", "item"])  # which costs nothing on a CPU
def test_without_a_fault_nothing_is_said(home, script, options):
    _, found, ranks = verdict(script, options=options)
    assert found == []
    whole = steps.of_run(ranks[0])
    assert whole.share("forward") > 0.5
    assert sum(v for v in whole.parts.values() if v is not None) == pytest.approx(whole.seconds)
    assert {n for n, v in whole.parts.items() if v is None} <= {"wait", "save", "eval", "copy"}


@pytest.fixture
def few(monkeypatch):
    """A verdict needs no more than a few steps."""
    monkeypatch.setattr(verdicts, "STEPS", 3)
    monkeypatch.setattr(verdicts, "SECONDS", 0.0)


@pytest.mark.parametrize("name", ["accumulate", "gan", "thread", "with_lightning"])
def test_real_scripts_give_none(home, few, name):
    if name.startswith("with_"):
        pytest.importorskip(name.removeprefix("with_"))
    assert (SCRIPTS / f"{name}.py").exists()
    seen = observe(f"{name}.py", bare=False)
    assert seen.state["state"] == "completed", seen.log()
    assert verdicts.of(views(seen.run), device_times.read(seen.run.path)) == []
    assert not (seen.run.path / "observe-errors.log").exists()


@pytest.mark.parametrize(("use", "more"), [
    ("gpu_engine.tasks.digits:Digits", ("train.epochs=3",)),
    ("gpu_engine.tasks.bytes_gpt:BytesGPT", (
        "task.params.width=32", "task.params.layers=2", "task.params.heads=2",
        "task.params.context=32", "task.params.megabytes=0.3", "train.steps=80"))])
def test_tasks_give_none(home, few, use, more):
    run, state = engine_run("--devices", "cpu:0", *(
        word for one in (f"task.use={use}", "batch.size=32", "train.lr=0.01", "train.workers=0",
                         *more)
        for word in ("--set", one)))
    assert state["state"] == "completed"
    found = views(run)
    assert steps.of_run(found[0]) is not None
    assert verdicts.of(found, device_times.read(run.path)) == []
