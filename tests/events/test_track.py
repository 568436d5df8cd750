"""How far the values of a run have gone, worked out by hand."""

from __future__ import annotations

import math

import pytest

from gpu_engine.events.schema import Eval, Metric, Start, Step
from gpu_engine.events.track import Extent, Track


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
    assert track.extents() == {"loss": Extent(1.5, 2.0, 1.5)}  # means 2, 1.5, 1.5


def test_steps_that_a_later_attempt_makes_again_count_once():
    track = Track()
    track.fold(0, start())
    track.fold(0, step(4, 4.0, 3.0, 0.5, 0.1))
    for at in (3, 3, 4):
        track.fold(0, Eval(at, {"accuracy": 0.9}))
    track.fold(0, start(2))
    track.fold(0, step(3, 2.5))  # from the checkpoint of step 2
    assert track.extents() == {"loss": Extent(2.5, 4.0, 2.5)}  # nor the evaluations since
    track.fold(0, step(4, 2.0))
    track.fold(0, Eval(4, {"accuracy": 0.5}))
    track.fold(0, step(9, n=5, loss=1.5, loss_min=0.2, loss_max=3.0, loss_last=1.0))
    track.fold(0, Metric(10, {"loss": 7.0, "ppl": 5.0}))
    track.fold(0, step(10, n=1, loss=1.25))  # the value of a step may come before it
    track.fold(0, step(10, n=0))
    track.fold(7, start(process=2))  # another process that trains as the same rank
    track.fold(7, step(1, 0.0))
    assert track.extents() == {"loss": Extent(1.0, 4.0, 1.25), "ppl": Extent(5.0, 5.0, 5.0),
                               "eval:accuracy": Extent(0.5, 0.5, 0.5)}


def test_a_member_that_went_on_with_fewer_ranks():
    track = Track()
    for rank in (0, 1):
        track.fold(rank, start())
        track.fold(rank, step(4, 4.0, 3.0, 2.5, 2.0, samples_per_s=10.0))
    track.fold(0, start(2))
    track.fold(0, step(6, 2.0, 1.0, 0.5, samples_per_s=10.0))
    assert track.extents() == {"loss": Extent(0.5, 4.0, 0.5)}
    assert track.samples_per_s == 10.0
    for rank in (0, 1):  # and with both again
        track.fold(rank, start(3))
        track.fold(rank, step(8, 1.0 + rank, 2.0 + rank, samples_per_s=10.0))
    assert track.extents() == {"loss": Extent(0.5, 4.0, 2.5)}


def test_a_loss_that_was_only_logged():
    track = Track()
    track.fold(0, Metric(None, {"loss": 2.0}))
    track.fold(0, Metric(None, {"loss": math.nan}))
    found = track.extents()["loss"]
    assert (found.least, found.greatest) == (2.0, 2.0)
    assert math.isnan(found.last)
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
