"""A matrix product every so many steps: what is said, that training does not notice, and who is
named."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.diagnose import verdicts
from gpu_engine.events import schema
from gpu_engine.events.view import RunView
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank import sniff

from ... import event_lines
from ...observe.kit import PYTHON, SCRIPTS

CPU = torch.device("cpu")
TASK = ("task.use=gpu_engine.tasks.digits:Digits", "train.steps=9", "train.workers=0")


def recorded(*options: str) -> list[dict]:
    done = CliRunner().invoke(cli, ["run", "--mode", "single", "--devices", "cpu:0", *options],
                              env={"OMP_NUM_THREADS": "1"})
    assert done.exit_code == 0, done.output
    return event_lines.read(runs.find("last").events(0))


def losses(events: list[dict]) -> list[float]:
    return [x for e in events if e["kind"] == "step" for x in e["losses"]]


def test_a_task_says_it_every_so_many_steps_and_trains_the_same(home):
    task = [word for key in TASK for word in ("--set", key)]
    with_ = recorded(*task, "--set", "run.sniff=4")
    assert "\n  matrix product 0.0" in CliRunner().invoke(cli, ["show", "last"]).stdout
    without = recorded(*task)
    found = [e for e in with_ if e["kind"] == "sniff"]
    assert [e["step"] for e in found] == [4, 8]
    assert all(e["model"] == "cpu" and e["flops_per_s"] > 1e8 for e in found)
    assert not [e for e in without if e["kind"] == "sniff"]
    assert losses(with_) == losses(without)
    assert len(losses(with_)) == 9


def test_a_script_does_too(home):
    found = recorded("--set", "run.sniff=5", "--", PYTHON, str(SCRIPTS / "plain.py"))
    steps = [e["step"] for e in found if e["kind"] == "sniff"]
    assert steps[:2] == [5, 10]


def test_what_fails_is_said_once_and_no_memory_is_no_failure(monkeypatch):
    monkeypatch.setattr(sniff, "multiply", lambda *about: 1 / 0)
    one = sniff.Sniffer(10)
    assert one.due == 10
    told = one.measure(10, CPU)
    assert isinstance(told, schema.Warning)
    assert one.due == float("inf")

    def full(*about):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sniff, "multiply", full)
    one = sniff.Sniffer(10)
    assert one.measure(13, CPU) is None
    assert one.due == 20


def view(*each: tuple[str, list[float]]) -> RunView:
    run = RunView()
    for rank, (model, figures) in enumerate(each):
        run.fold(rank, schema.Start(rank, rank, 0, 1, 1, len(each)))
        for step, figure in enumerate(figures):
            run.fold(rank, schema.Sniff(step, model, figure))
    return run


FAST, SLOW = [600e12, 100e12, 610e12], [400e12, 400e12, 700e12]


@pytest.mark.parametrize(("each", "named"), [
    ([("H100", FAST), ("H100", FAST)], []),
    ([("H100", FAST), ("H100", SLOW)], [1]),  # the middle one counts
    ([("H100", SLOW), ("H100", FAST), ("H100", FAST)], [0]),
    ([("H100", FAST), ("A100", SLOW)], []),  # nothing to compare with
    ([("cpu", FAST), ("cpu", SLOW)], []),  # cores are shared with whatever runs
    ([("H100", FAST), ("H100", SLOW[:2])], []),  # seen too seldom
    ([("H100", [9e12] * 9 + FAST * 2), ("H100", FAST)], [])])  # what was long ago
def test_a_device_far_below_the_others_is_named(each, named):
    run = view(*each)
    found = [v for v in verdicts.of(list(run.ranks.values())) if v.code == "slow-device"]
    assert [v.rank for v in found] == named
    for one in found:
        assert "400 of 600 TFLOP/s" in one.text
        assert one.figures["share"] == pytest.approx(2 / 3, abs=1e-3)


def test_an_attempt_begins_with_none():
    run = view(("H100", FAST))
    run.fold(0, schema.Start(0, 0, 0, 1, 1, 1, attempt=2))
    assert run.ranks[0].flops_per_s == []
