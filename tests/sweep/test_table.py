"""A sweep summed up, against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.events.schema import Eval, Metric, Start, Step
from gpu_engine.events.track import Extent, Track
from gpu_engine.runs import digest
from gpu_engine.runs.digest import By, FiguresOf
from gpu_engine.runs.folder import Rung
from gpu_engine.sweep import table as sweep_table
from gpu_engine.sweep.table import One, Stat, count, failures, parse_by, points, stat

from ..export.kit import T0, Written


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
    assert count(mixed) == {"done": 1, "running": 2, "waiting": 1, "failed": 3, "stopped": 1}
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
        sweep_table.notes(points(runs, by), by)
    for line in points(runs, By()):
        sweep_table.cells(line)
    sweep_table.heads(["train.lr", "task.params.lr", "train.seed"], By("acc"))
    sweep_table.named([replace(runs[0], extents=dict.fromkeys(map(str, range(33))))])
    compared = [replace(run, exact=False, rungs=(Rung(0.25, 1.0), Rung(0.5, 2.0, best=value))[:at])
                for at, (run, value) in enumerate(zip(runs, (None, 0.5, None), strict=True))]
    sweep_table.notes(points(compared, By()), By())
    sweep_table.notes(points(compared[:2], By()), By())
    sweep_table.best_text(runs[1:], By())
    sweep_table.best_text([replace(runs[0], values={}, repeat=None)], By())
    assert sweep_table.best_text([], By()) == ""
    assert sweep_table.notes([], By()) == []


def test_values_that_are_not_finite_are_left_out_and_counted():
    assert stat([1.0, math.nan, None, 3.0, math.inf]) == Stat(2, 2.0, math.sqrt(2), odd=2)
    assert stat([]) == Stat(0, None, None)
    found = points([one(1, "a", least=0.5, last=math.nan), one(2, "a", least=0.7),
                    one(3, "a", least=0.8), one(4, "b", least=math.nan)], By())
    assert [sweep_table.cells(line)[2:4] for line in found] == [
        ["0.750 ± 0.0707 (2)"] * 2, ["–", "NaN"]]
    assert sweep_table.notes(found, By())[-1] == \
        "2 runs ended with a loss that is not finite; means leave it out"


def test_examples_a_second_are_the_ranks_medians_added_up():
    track = Track()
    for rank, rates in enumerate(([1.0, 30.0, 32.0], [2.0, 40.0, 44.0])):
        track.fold(rank, start())
        for at, rate in enumerate(rates, 1):
            track.fold(rank, Step(at, 0.1, 0, loss=1.0, losses=(1.0,), samples_per_s=rate))
    track.fold(7, start(process=2))  # another process that trains as the same rank
    assert track.samples_per_s == 70.0
    track.fold(2, start())  # a rank that tells none: the sum is not known
    assert track.samples_per_s is None


def start(attempt=1, process=None):
    return Start(0, 0, 0, 1, 1, 2, attempt=attempt, process=process)


def step(last, *losses, **more):
    return Step(last, 0.1, 0, n=more.pop("n", len(losses)), losses=losses, **more)


def test_a_runs_loss_is_the_mean_of_its_ranks_at_each_step():
    track = Track()
    for rank, losses in enumerate(((3.0, 1.0, 2.0), (1.0, 2.0, 1.0))):
        track.fold(rank, start())
        track.fold(rank, step(3, *losses))
    track.fold(0, step(4, 0.1))  # rank 1 has not told its yet
    assert track.steps == 3
    assert track.extents() == {"loss": Extent(1.5, 2.0, 1.5)}  # means 2, 1.5, 1.5


def test_steps_that_a_later_attempt_makes_again_count_once():
    track = Track()
    track.fold(0, start())
    track.fold(0, step(4, 4.0, 3.0, 0.5, 0.1))
    for at in (3, 3, 4):
        track.fold(0, Eval(at, {"accuracy": 0.9}))
    track.fold(0, start(2))
    track.fold(0, step(3, 2.5))  # from the checkpoint of step 2
    assert track.steps == 3
    assert track.extents() == {"loss": Extent(2.5, 4.0, 2.5)}  # nor the evaluations since
    track.fold(0, step(4, 2.0))
    track.fold(0, Eval(4, {"accuracy": 0.5}))
    track.fold(0, step(9, n=5, loss=1.5, loss_min=0.2, loss_max=3.0, loss_last=1.0))
    track.fold(0, Metric(10, {"loss": 7.0, "ppl": 5.0}))
    track.fold(0, step(10, n=1, loss=1.25))  # the value of a step may come before it
    track.fold(0, step(10, n=0))
    track.fold(7, start(process=2))  # another process that trains as the same rank
    track.fold(7, step(1, 0.0))
    assert track.steps == 10
    assert track.extents() == {"loss": Extent(1.0, 4.0, 1.25), "ppl": Extent(5.0, 5.0, 5.0),
                               "eval:accuracy": Extent(0.5, 0.5, 0.5)}


def test_a_member_that_went_on_with_fewer_ranks():
    track = Track()
    for rank in (0, 1):
        track.fold(rank, start())
        track.fold(rank, step(4, 4.0, 3.0, 2.5, 2.0, samples_per_s=10.0))
    track.fold(0, start(2))
    track.fold(0, step(6, 2.0, 1.0, 0.5, samples_per_s=10.0))
    assert track.steps == 6
    assert track.extents() == {"loss": Extent(0.5, 4.0, 0.5)}
    assert track.samples_per_s == 10.0
    for rank in (0, 1):  # and with both again
        track.fold(rank, start(3))
        track.fold(rank, step(8, 1.0 + rank, 2.0 + rank, samples_per_s=10.0))
    assert track.steps == 8
    assert track.extents() == {"loss": Extent(0.5, 4.0, 2.5)}


def test_a_loss_that_was_only_logged():
    track = Track()
    track.fold(0, Metric(None, {"loss": 2.0}))
    track.fold(0, Metric(None, {"loss": math.nan}))
    found = track.extents()["loss"]
    assert (found.least, found.greatest) == (2.0, 2.0)
    assert math.isnan(found.last)
    assert track.steps is None
    assert track.curve("loss") == {0: 2.0, 1: pytest.approx(math.nan, nan_ok=True)}
    track.fold(1, Metric(0, {"loss": 4.0, "v": 1.0}))  # of a name, the first rank that has it
    track.fold(2, Metric(0, {"v": 3.0}))
    assert [track.curve("loss")[0], track.curve("v")] == [2.0, {0: 1.0}]


def test_of_several_values_of_a_step_the_last_stands_and_none_is_forgotten():
    track = Track()
    track.fold(0, start())
    for at, value in ((4, 5.0), (5, 1.0), (5, 9.0), (None, 2.0), (5, 3.0)):
        track.fold(0, Metric(at, {"v": value}))
    assert track.curve("v") == {4: 5.0, 5: 3.0, 6: 2.0}  # without a step: the one after
    assert track.extents()["v"] == Extent(1.0, 9.0, 2.0)
    assert track.extents(4)["v"] == Extent(5.0, 5.0, 5.0)
    assert track.extents(5)["v"] == Extent(1.0, 9.0, 3.0)
    track.fold(0, Metric(7, {"v": 4.0}))
    track.fold(0, Metric(7, {"v": 0.5}))
    track.fold(0, Metric(7, {"v": 6.0}))
    assert track.extents()["v"] == Extent(0.5, 9.0, 6.0)
    track.fold(0, start(2))
    track.fold(0, Metric(5, {"v": 3.5}))  # what is made again takes the place of all that was
    track.fold(0, Metric(7, {"v": 3.6}))
    assert track.extents()["v"] == Extent(2.0, 5.0, 3.6)


def test_what_is_read_of_a_run_and_read_again_only_where_something_was_written(home, monkeypatch):
    with Written(ranks=2) as it:
        for rank in (0, 1):
            it.start(rank)
            it.steps(rank, 2, [2.0 + rank, 1.0 + rank], t=5.0)
        found = digest.figures(it.path)
        assert (found.steps, found.values, found.samples_per_s, found.loss, found.exact) \
            == (2, {"loss": Extent(1.5, 2.5, 1.5)}, 200.0, 1.5, True)
        assert (found.means[0], found.means[-1]) == (2.5, 1.5)
        assert digest.figures(it.path, t=T0 + 4).values == {}
        assert digest.figures(it.path, step=1).values == {"loss": Extent(2.5, 2.5, 2.5)}
        seen = FiguresOf()
        assert seen.read(it.run).values == found.values
        assert seen.read(it.run) is seen.read(it.run)
        it.steps(0, 3, [0.5], t=6.0)
        # Where there is more than so much, it is parts of the first rank's.
        monkeypatch.setattr(digest, "_PARTS", 0)
        for limit, loss, exact in ((0, Extent(1.5, 2.5, 1.5), True),
                                   (1, Extent(0.5, 2.0, 0.5), False)):
            monkeypatch.setattr(digest, "_END", it.run.events(0).stat().st_size - limit)
            found = digest.figures(it.path)
            assert (found.values["loss"], found.exact) == (loss, exact)
            assert found.samples_per_s == 200.0
        assert seen.read(it.run).values == found.values
