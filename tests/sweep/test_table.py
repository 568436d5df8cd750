"""A sweep summed up, against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.events.track import Extent
from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Rung
from gpu_engine.sweep import table as sweep_table
from gpu_engine.sweep.table import One, Stat, count, failures, parse_by, points, stat


def one(index, value, state="completed", *, least=None, last=None, repeat=None, why=None,
        seconds=10.0, accuracy=None, steps=20, rate=None):
    extents = {} if least is None else {
        "loss": Extent(least, least, least if last is None else last)}
    if accuracy is not None:
        extents["eval:accuracy"] = Extent(*accuracy)
    return One(f"{index:04x}", index, {"train.lr": value}, repeat, f"t lr={value}", state, why,
               seconds, steps, extents, rate)


def test_mean_and_sample_standard_deviation_over_the_seeds():
    found = points([one(1, "a", least=0.3, rate=100.0),
                    one(2, "a", least=0.5, seconds=20.0, steps=10, rate=200.0),
                    one(3, "a", least=0.7), one(4, "b", least=0.4), one(5, "b", least=0.2)], By())
    assert [p.values["train.lr"] for p in found] == ["b", "a"]
    # b: mean 0.3; the squares of ±0.1 add up to 0.02, over n - 1 = 1
    assert found[0].best == Stat(2, pytest.approx(0.3), pytest.approx(math.sqrt(0.02)))
    # a: mean 0.5; 0.04 + 0 + 0.04 = 0.08, over n - 1 = 2
    assert found[1].best == Stat(3, pytest.approx(0.5), pytest.approx(0.2))
    assert found[1].steps == (10, 20)
    assert found[1].seconds == pytest.approx(40 / 3)
    assert sweep_table.cells(found[1]) == ["a", "3 done", "0.500 ± 0.200 (3)", "0.500 ± 0.200 (3)",
                                     "20", "00:13", "150"]


def test_only_runs_that_are_done_count_while_there_are_any():
    mixed = [one(1, "a", least=0.5), one(2, "a", "failed", least=0.1, why="rank 0: boom"),
             one(3, "a", "running", least=0.2), one(4, "b", "running", least=0.4),
             one(5, "b", "lost", least=0.6, why="rank 0: boom"), one(6, "c", "queued"),
             one(7, "d", "stopped", least=0.9), one(8, "c", "failed", why="no room")]
    found = points(mixed, By())
    assert [(p.values["train.lr"], p.best.mean, p.partial) for p in found] == [
        ("a", 0.5, False), ("b", 0.5, True), ("d", 0.9, True), ("c", None, True)]
    assert found[0].counts == {"done": 1, "running": 1, "failed": 1}
    assert sweep_table.cells(found[1])[2].startswith("~0.500 ± 0.141 (2)")
    assert sweep_table.cells(found[3]) == ["c", "1 waiting, 1 failed", *"–––––"]
    assert count(one.state for one in mixed) == {
        "done": 1, "running": 2, "waiting": 1, "failed": 3, "stopped": 1}
    assert [(why, [m.index for m in whose]) for why, whose in failures(mixed)] == [
        ("rank 0: boom", [2, 5]), ("no room", [8])]


def test_another_value_may_decide_and_the_greatest_be_best():
    found = [one(1, "a", least=0.1, accuracy=(0.2, 0.8, 0.7)),
             one(2, "b", least=0.2, accuracy=(0.1, 0.9, 0.9))]
    by = parse_by("max:eval:accuracy", found)
    assert by == By("eval:accuracy", largest=True)
    assert [(p.values["train.lr"], p.best.mean, p.last.mean) for p in points(found, by)] == [
        ("b", 0.9, 0.9), ("a", 0.8, 0.7)]
    assert parse_by("min:loss", found) == parse_by("loss", found) == By()
    below = points([one(1, "a", least=0.1), one(2, "b", least=-3.0), one(3, "c", least=0.0)], By())
    assert [p.values["train.lr"] for p in below] == ["b", "c", "a"]
    with pytest.raises(UserError, match="recorded 'eval:acuracy'; there are loss, eval:accuracy"):
        parse_by("max:eval:acuracy", found)


def test_a_sweep_in_words():
    runs = [one(1, "a", least=0.5, repeat=2, rate=1234.5), one(3, "c", "failed"),
            one(2, "b" * 30, "running", least=0.25, rate=12.345, seconds=None, steps=None)]
    for of in (3, 5):
        sweep_table.summary(of, runs)
    for by in (By(), By("loss", largest=True), By("acc")):
        sweep_table.best_text(runs, by)
        sweep_table.notes(points(runs, by), by, len(runs) + 1)
    for line in points(runs, By()):
        sweep_table.cells(line)
    sweep_table.heads(["train.lr", "task.params.lr", "train.seed"], By("acc"))
    sweep_table.named([replace(runs[0], extents=dict.fromkeys(map(str, range(33))))])
    compared = [replace(run, exact=False, rungs=(Rung(0.25, 1.0), Rung(0.5, 2.0, best=value))[:at])
                for at, (run, value) in enumerate(zip(runs, (None, 0.5, None), strict=True))]
    sweep_table.notes(points(compared, By()), By(), 0)
    sweep_table.notes(points(compared[:2], By()), By(), 0)
    sweep_table.best_text(runs[1:], By())
    sweep_table.best_text([replace(runs[0], values={}, repeat=None)], By())
    assert sweep_table.best_text([], By()) == ""
    assert sweep_table.notes([], By(), 0) == []


def test_values_that_are_not_finite_are_left_out_and_counted():
    assert stat([1.0, math.nan, None, 3.0, math.inf]) == Stat(2, 2.0, math.sqrt(2), odd=2)
    assert stat([]) == Stat(0, None, None)
    found = points([one(1, "a", least=0.5, last=math.nan), one(2, "a", least=0.7),
                    one(3, "a", least=0.8), one(4, "b", least=math.nan)], By())
    assert [sweep_table.cells(line)[2:4] for line in found] == [
        ["0.750 ± 0.0707 (2)"] * 2, ["–", "NaN"]]
    assert sweep_table.notes(found, By(), 0)[-1] == \
        "2 runs ended with a loss that is not finite; means leave it out"
