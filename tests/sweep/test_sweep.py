"""Sweeps on disk: submitted whole or not at all, shown, stopped, tried again."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.queue import serve
from gpu_engine.queue import submit as queue
from gpu_engine.runs import attempts, sweep, waiting
from gpu_engine.runs.folder import Run, Rung, State, all_runs
from gpu_engine.sweep import group
from gpu_engine.sweep.__main__ import AHEAD, main

from ..command_line import called
from ..conftest import wait_for
from ..queue import kit
from ..queue.kit import hold
from .made import ended, nobody_starts, submitted


@pytest.fixture(autouse=True)
def _no_waiter(home, monkeypatch):
    nobody_starts(monkeypatch)


def said(*words: str, code: int = 0) -> str:
    done = called(*words)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_table_and_what_scripts_get():
    made = submitted("train.lr=1e-3,3e-4", "task.params.width=8,16", repeat=2)
    runs = made.runs
    assert [w.run for w in serve.line()] == list(runs)  # in the order of the grid
    assert [sweep.read(r.path).values for r in runs[:3]] == [
        {"train.lr": "1e-3", "task.params.width": "8"}] * 2 + [
        {"train.lr": "1e-3", "task.params.width": "16"}]
    for run, losses in zip(runs, ([2.0, 1.0], [2.0, 0.6], [3.0, 0.5, 0.9]), strict=False):
        ended(run, losses, evaluation={"accuracy": losses[-1] / 2})
    ended(runs[3], [9.0, 8.0], "CUDA out of memory\nmore")
    ended(runs[4], [], "CUDA out of memory")
    assert "3 of 8 done, 3 waiting, 2 failed" in said("sweep")
    text = said("sweep", made.id)
    assert text.splitlines()[:5] == [
        f"{made.id} toy: 3 of 8 done, 3 waiting, 2 failed", "",
        "lr    width  runs                 best loss          last               steps  time   "
        "examples/s",
        "1e-3  16     1 done, 1 failed     0.500              0.900              3      01:00  –",
        "1e-3  8      2 done               0.800 ± 0.283 (2)  0.800 ± 0.283 (2)  2      01:00  –"]
    assert f"2 failed ({runs[3].id}, {runs[4].id}): rank 0: RuntimeError: CUDA out of memory\n" \
        in text
    best = json.loads(said("sweep", "last", "--by", "max:eval:accuracy", "--json"))
    assert best["by"] == "max:eval:accuracy"
    assert best["points"][0] | {"seconds": 0} == {
        "values": {"train.lr": "1e-3", "task.params.width": "16"}, "samples_per_s": None,
        "counts": {"done": 1, "failed": 1}, "partial": False, "steps": [3, 3], "seconds": 0,
        "best": {"n": 1, "mean": 0.45, "spread": None, "odd": 0},
        "last": {"n": 1, "mean": 0.45, "spread": None, "odd": 0},
        "runs": [runs[2].id, runs[3].id]}
    assert [(r["id"], r["values"]["train.lr"], r["repeat"], r["state"], r["best"], r["cause"])
            for r in best["runs"][2:5]] == [
        (runs[2].id, "1e-3", 1, "completed", 0.45, None),
        (runs[3].id, "1e-3", 2, "failed", None, "rank 0: RuntimeError: CUDA out of memory"),
        (runs[4].id, "3e-4", 1, "failed", None, "rank 0: RuntimeError: CUDA out of memory")]
    assert "no run of the sweep has recorded 'acc'" in said("sweep", made.id, "--by", "acc", code=2)
    assert "there is no sweep 'nope'" in said("sweep", "nope", code=2)


def test_nothing_is_submitted_unless_every_member_can_run():
    with pytest.raises(SpecError) as err:
        submitted("batch.size=8,9,10", "train.steps=1,2", devices={"ids": ["cpu:0", "cpu:1"]},
                  parallel={"mode": "ddp"})
    assert str(err.value) == (
        "batch.size = 9: a global batch must divide by 2 replicas; 8 or 10 would "
        "(run 3 of 6, toy size=9 steps=1)")
    assert all_runs() == []


def test_a_submission_that_breaks_off_is_taken_back(monkeypatch):
    create, calls = queue.create_run, []

    def full(*args):
        calls.append(args)
        if len(calls) == 3:
            raise UserError("the disk is full")
        return create(*args)

    monkeypatch.setattr(queue, "create_run", full)
    with pytest.raises(UserError, match="the disk is full"):
        submitted("train.lr=1,2,3,4")
    assert len(calls) == 3
    assert all_runs() == []
    assert serve.line() == []


def test_failed_members_wait_again_as_they_were_submitted_and_stop_takes_all_out():
    made = submitted("train.lr=1,2,3")
    good, bad, waits = made.runs
    assert group.read(group.find(made.id))[1].steps is None
    ended(good, [1.0])
    assert group.read(group.find(made.id))[0].steps == 1
    ended(good, [1.0, 0.5])  # two more lines of its events
    assert group.read(group.find(made.id))[0].steps == 2
    ended(bad, [1.0], "boom")
    spec = (bad.path / "spec.toml").read_text()
    (bad.path / "spec.toml").write_text(spec.replace("pick = 1", 'ids = ["cpu:1"]'))  # it started
    sweep.write(bad.path, replace(sweep.read(bad.path), free_gib=20.0))
    assert said("sweep", "retry", made.id) == f"1 run will be tried again: {bad.id}\n"
    state = bad.state()
    assert (state.state, state.attempt, len(state.attempts)) == ("queued", 2, 1)
    assert attempts.read_spec(bad)["devices"] == {"share": False, "pick": 1, "free_gib": 20.0}
    assert group.read(group.find(made.id))[1].steps == 1  # it keeps what it has done
    entry = waiting.read(bad.path)
    assert (entry.count, entry.ids, entry.free) == (1, (), 20 << 30)
    assert [w.run for w in serve.line()] == [waits, bad]
    assert "has failed" in said("sweep", "retry", made.id, code=2)
    assert said("sweep", "stop", made.id).startswith("2 runs stopped: ")
    assert [r.state().state for r in made.runs] == ["completed", "stopped", "stopped"]
    assert serve.line() == []
    assert "have ended" in said("sweep", "stop", made.id)
    assert said("sweep", "retry", made.id, code=2).endswith(
        f"no run of sweep {made.id} has failed; with --stopped 2 runs more\n")
    assert said("sweep", "retry", made.id, "--stopped").startswith("2 runs will be tried again: ")
    assert [r.state().state for r in made.runs] == ["completed", "queued", "queued"]
    assert {w.run for w in serve.line()} == {waits, bad}
    assert said("sweep", "stop", made.id).startswith("2 runs stopped: ")
    ended(bad, [1.0], state="stopped")
    state = bad.state()
    bad.write_state(replace(state, rungs=(
        Rung(0.25, 1.0, 1, 1.0, state.attempt, "worse than 3 of 4 at step 1"),)))
    assert said("sweep", "retry", made.id, "--stopped") == \
        f"1 run will be tried again: {waits.id}\n"


def test_a_member_whose_supervisor_was_killed_is_tried_again_and_one_removed_is_left_out():
    made = submitted("train.lr=1,2,3")
    lost, removed, _ = made.runs
    ended(lost, [1.0], state="lost")
    found = group.find(made.id)
    ended(removed, [1.0])
    removed.remove()
    assert [(one.id, one.kind) for one in group.read(found)] == [
        (lost.id, "failed"), (made.runs[2].id, "waiting")]
    assert said("sweep", "retry", made.id) == f"1 run will be tried again: {lost.id}\n"
    assert "2 waiting, 1 not there" in said("sweep")


def test_a_stop_takes_the_last_of_the_line_first(monkeypatch):
    made = submitted("train.lr=1,2,3,4")
    waiting.leave(made.runs[0].path)  # it runs
    monkeypatch.setattr(Run, "state", lambda run: State("queued", run.id, "t", 1.0))
    stopped = []
    monkeypatch.setattr("gpu_engine.places.verbs.stop", lambda run, now: stopped.append(run))
    group.stop(group.find(made.id))
    assert stopped == [*made.runs[:0:-1], made.runs[0]]


def test_only_the_next_members_wait_with_a_supervisor(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WORD", "of the submission")
    monkeypatch.chdir(tmp_path)
    with hold():
        runs = submitted("train.lr=1,2,3,4,5,6", devices={"ids": ["cpu:0"]}, task={"command": [
            "sh", "-c", "echo {lr} $WORD >> ran; sleep 0.1"]}).runs
        monkeypatch.setenv("WORD", "later")
        wait_for(lambda: sum(run.supervised() for run in runs) == AHEAD)
        wait_for(lambda: "77aa" in runs[0].state().reason)
        assert [r.supervised() for r in runs] == [True] * AHEAD + [False] * (6 - AHEAD)
        assert runs[-1].state().reason == "waits for runs ahead of it"
        assert serve.alone() == {}
        behind = kit.queue("sh", "-c", "echo behind >> ran")
        runs[1].stop()
        wait_for(lambda: runs[4].supervised())
    kit.over(*runs, behind)
    assert (tmp_path / "ran").read_text().splitlines() == [
        *(f"{n} of the submission" for n in (1, 3, 4, 5, 6)), "behind"]


def test_the_command_line_makes_a_sweep_and_shows_it_before(home):
    words = ("--set", "task.use=gpu_engine.tasks.bytes_gpt:BytesGPT", "--devices", "cpu:0",
             "--grid", "train.lr=1,2", "--repeat", "2")
    shown = said("plan", *words)
    assert shown.splitlines()[:3] == ["   train.lr  seed  name", "1  1         0     run lr=1 #1",
                                      "2  1         1     run lr=1 #2"]
    assert "4 runs; the first, single:" in shown
    assert all_runs() == []
    told = json.loads(said("run", *words, "--json", "--priority", "3"))
    assert [w.run.id for w in serve.line()] == told["runs"]
    assert {w.entry.priority for w in serve.line()} == {3}
    assert {sweep.read(r.path).sweep for r in all_runs()} == {told["id"]}


@pytest.mark.parametrize(("sections", "by"), [
    ({}, "loss"), ({"train": {"best": "max:accuracy"}}, "max:eval:accuracy"),
    ({"train": {"best": "max:accuracy"}, "run": {"best": "loss"}}, "eval:loss"),
    ({"run": {"best": "min:unheard"}}, "unheard")])
def test_what_decides_unless_a_person_says_otherwise(sections, by):
    """Evaluations only where they were asked for, though they have a loss too."""
    made = submitted("task.params.width=8,16", **sections)
    ended(made.runs[0], [2.0, 1.0], evaluation={"loss": 0.5, "accuracy": 0.9})
    found = group.find(made.id)
    assert group.default_by(found, group.read(found)).text == by
    if by == "unheard":  # which takes no other's place
        assert "no run has recorded 'unheard'; there are loss, eval:loss" in said("sweep", made.id)
    # The same in all places, with its name.
    name = by.removeprefix("max:")
    (one,) = [row for row in json.loads(said("runs", "--json")) if row["id"] == made.runs[0].id]
    assert (one["best"] or {"name": by})["name"] == name


def test_its_process_leaves_the_home_as_it_was_set(monkeypatch, tmp_path):
    """Else members would look for hosts.toml and notify.toml among the runs."""
    monkeypatch.setenv("GPU_PANEL_HOME", "")  # what it becomes is undone, too
    monkeypatch.delenv("GPU_PANEL_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    folder = paths.queue_folder()
    paths.private_folder(folder)
    for elsewhere in (False, True):
        if elsewhere:
            folder = paths.private_folder(tmp_path / "other" / "queue")
        lock = os.open(folder / "s1.lock", os.O_RDWR | os.O_CREAT, 0o600)
        main(folder, "s1", lock)
        os.close(lock)
        assert os.environ.get("GPU_PANEL_HOME") == (str(folder.parent) if elsewhere else None)
