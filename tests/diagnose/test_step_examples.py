"""Which examples a step was trained on: compared with what the ranks of a real run write down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.diagnose.step_examples import trained_step
from gpu_engine.runs import attempts, folder
from gpu_engine.runs.folder import AttemptRecord

from ..command_line import called
from ..export.kit import T0, Written

DRAWS = f"{Path(__file__).parents[1] / 'training' / 'draws_task.py'}:Draws"


def trained(record, *more):
    record.mkdir()
    done = called("run", "ddp", "--set", f"task.use={DRAWS}",
                  "--set", f"task.params.record={record}", "--set", "batch.size=8",
                  "--set", "batch.accumulate=2",
                  "--set", "train.steps=14", *more)
    assert done.returncode == 0, done.stderr
    return folder.find("last")


def numbers(record, rank, step, passes):
    """The examples that a rank had in the passes of a step."""
    lines = (record / f"drawn-{rank}-1.jsonl").read_text().splitlines()
    return [i for line in lines[(step - 1) * passes:step * passes]
            for i in json.loads(line)["numbers"]]


@pytest.mark.parametrize(("more", "ranks"), [
    (("--devices", "cpu:0,cpu:1"), 2),
    (("--devices", "cpu:0", "--mode", "single"), 1)])
def test_the_examples_of_a_step_are_those_that_were_read(home, tmp_path, more, ranks):
    run, record = trained(tmp_path / "record", *more), tmp_path / "record"
    for step in (1, 6, 7, 14):  # the first and the last of an epoch of six, and of the run
        out = called("examples", run.id, "--step", str(step), "--json")
        assert out.returncode == 0, out.stderr
        told = json.loads(out.stdout)
        assert told["epoch"] == (step - 1) // 6
        assert [r["examples"] for r in told["ranks"]] == [
            numbers(record, rank, step, passes=2) for rank in range(ranks)]
        assert all(r["loss"] is not None for r in told["ranks"])
    out = called("examples", run.id, "--step", "15")
    assert out.returncode == 2
    assert "has not recorded step 15" in out.stderr


def schedule(run, rank, *, examples=100, batch=64, t=0.0, **more):
    run.tell(rank, "schedule", t=t, **{
        "total_steps": 50, "steps_per_epoch": examples // batch, "epochs": None,
        "examples": examples, "dropped": 0, "batch": batch, "first_step": 0, **more})


def test_the_last_attempt_that_trained_it_counts_with_the_figures_before_it(home):
    with Written(ranks=1) as run:
        batch = run.run.plan().batch.global_size
        run.start()
        schedule(run, 0, examples=10 * batch, batch=batch)
        run.steps(0, 20, [9.0] * 20, t=1.0)
        run.state = replace(run.state, attempt=2, attempts=(
            replace(run.state.attempts[0], ended=T0 + 1.5, outcome="stopped"),
            AttemptRecord(2, T0 + 2.0)))
        run.start(attempt=2, t=2.0)
        schedule(run, 0, examples=10 * batch, batch=batch, t=2.0, first_step=10)
        run.steps(0, 13, [1.0, 2.0, 3.0], t=3.0, grad_norm=0.5)
        run.steps(0, 15, [4.0, 5.0], t=4.0, grad_norm=7.0)
    found = trained_step(run.run, 14)
    [at] = found.ranks
    assert (found.attempt, found.epoch, found.offset, at.loss(14)) == (2, 1, 3, 4.0)
    assert at.before is not None
    assert (at.before.loss, at.before.grad_norm, at.at.grad_norm) == (2.0, 0.5, 7.0)
    assert trained_step(run.run, 5).attempt == 1


def test_the_seed_is_that_of_the_attempt_that_trained_the_step(home):
    with Written(ranks=1, train={"lr": 0.1, "steps": 50, "seed": 3}) as run:
        batch = run.run.plan().batch.global_size
        run.start()
        schedule(run, 0, examples=10 * batch, batch=batch)
        run.steps(0, 10, [9.0] * 10, t=1.0)
        spec = run.path / "spec.toml"
        text = spec.read_text().replace("seed = 3", "seed = 4")
        attempts.save(run.run, 1, text)
        spec.write_text(text)
        run.state = replace(run.state, attempt=2, attempts=(
            replace(run.state.attempts[0], ended=T0 + 1.5, outcome="stopped"),
            AttemptRecord(2, T0 + 2.0)))
        run.start(attempt=2, t=2.0)
        schedule(run, 0, examples=10 * batch, batch=batch, t=2.0, first_step=10)
        run.steps(0, 12, [1.0, 2.0], t=3.0)
    assert [trained_step(run.run, step).seed for step in (10, 11)] == [3, 4]


@pytest.mark.parametrize(("second", "why"), [
    ({"batch": 32}, "has changed between its attempts"),
    ({"examples": 64000}, "has changed between its attempts"),
    ({"steps_per_epoch": None}, "reads a stream")])
def test_what_can_not_be_known_is_refused(home, second, why):
    with Written(ranks=1) as run:
        run.start()
        schedule(run, 0, examples=6400, batch=run.run.plan().batch.global_size)
        run.start(attempt=2, t=2.0)
        schedule(run, 0, t=2.0, **{"examples": 6400} | second)
        run.steps(0, 3, [1.0] * 3, t=3.0)
    out = called("examples", run.run.id, "--step", "2")
    assert out.returncode == 2
    assert why in out.stderr


@pytest.mark.parametrize("examples", [2 * 10 ** 9, 10 ** 15])
def test_a_folder_that_claims_too_much_data_takes_no_memory(home, examples):
    with Written(ranks=1) as run:
        run.start()
        schedule(run, 0, examples=examples, batch=run.run.plan().batch.global_size)
        run.steps(0, 3, [1.0] * 3, t=3.0)
    out = called("examples", run.run.id, "--step", "2")
    assert out.returncode == 2
    assert "too many" in out.stderr


def test_a_command_of_ones_own_is_refused(home):
    with Written(task={"command": ["true"]}, train={}) as run:
        run.start()
    out = called("examples", run.run.id, "--step", "1")
    assert out.returncode == 2
    assert "reads its data itself" in out.stderr
