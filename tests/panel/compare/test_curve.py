"""A run's curve over steps and time, compared with figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.runs.folder import AttemptRecord, State
from gpu_panel.compare.curve import RunCurve


def at(event, t):
    """An event that happened at `t`, Unix seconds."""
    object.__setattr__(event, "t", t)
    return event


def start(attempt, t):
    return at(schema.Start(0, 0, 0, 1, None, 2, attempt=attempt), t)


def steps(last, losses, t, **more):
    return at(schema.Step(last, 0.1, 0, n=len(losses), losses=tuple(losses),
                          loss=sum(losses) / len(losses), **more), t)


def points(series: Series) -> dict[int, float]:
    """The mean of each bucket by its first x."""
    every = range(0, (series.last or 0) + 1, series.stride)
    return {x: found[1] for x in every if (found := series.at(x)) is not None}


def test_the_mean_of_the_ranks_over_steps_and_time():
    curve = RunCurve()
    # Three attempts with ten idle seconds between them.
    curve.learn(State("completed", "3f2a", "x", 100.0, started=100.0, ended=126.0, attempt=3,
                      attempts=(AttemptRecord(1, 100.0, 102.0, "stopped"),
                                AttemptRecord(2, 112.0, 114.0, "stopped"),
                                AttemptRecord(3, 124.0, 126.0, "completed"))))
    for rank in (0, 1):  # one file after the other, as they may be read
        curve.add(rank, start(1, 100.0))
        curve.add(rank, steps(1, [4.0 + rank], 101.0))
        # Rank 1 was stopped a step earlier than rank 0.
        curve.add(rank, steps(2, [4.0], 101.5) if rank else steps(3, [3.0, 2.0], 101.5))
        curve.add(rank, start(2, 112.0))
        curve.add(rank, steps(3, [9.0 + rank], 112.5))
        curve.add(rank, steps(4, [1.0 + rank], 113.0))
        curve.add(rank, start(3, 124.0))
        curve.add(rank, steps(5, [0.5 + rank], 125.0))
    assert points(curve.over("step")) == {1: 4.5, 2: 3.5, 3: 9.5, 4: 1.5, 5: 1.0}
    # The two losses of one event are spread over the half second before it.
    assert points(curve.over("time")) == {1000: 4.5, 1250: 3.0, 1500: 3.0, 2500: 9.5, 3000: 1.5,
                                          5000: 1.0}


def test_the_pause_before_an_attempt_is_no_part_of_its_first_losses():
    curve = RunCurve()
    curve.learn(State("running", "3f2a", "x", 100.0, started=100.0, attempt=2,
                      attempts=(AttemptRecord(1, 100.0, 102.0, "stopped"),
                                AttemptRecord(2, 112.0))))
    curve.add(0, start(1, 100.0), steps(1, [4.0], 101.0))
    curve.add(0, start(2, 112.0), steps(3, [3.0, 2.0], 113.0))
    assert points(curve.over("time")) == {1000: 4.0, 3000: 2.5}


def test_an_attempt_that_the_state_tells_of_later_has_its_time_all_the_same():
    curve = RunCurve()
    first = AttemptRecord(1, 100.0)
    curve.learn(State("running", "3f2a", "x", 100.0, started=100.0, attempts=(first,)))
    curve.add(0, start(1, 100.0), steps(1, [4.0], 101.0), start(2, 112.0))
    curve.learn(State("running", "3f2a", "x", 100.0, started=100.0, attempt=2, attempts=(
        replace(first, ended=102.0, outcome="stopped"), AttemptRecord(2, 112.0))))
    curve.add(0, steps(2, [3.0], 113.0))
    assert points(curve.over("time")) == {1000: 4.0, 3000: 3.0}


def test_the_extremes_of_a_mean_are_kept_and_steps_of_another_optimizer_are_none():
    curve = RunCurve()
    curve.add(0, start(1, 100.0), at(schema.Step(
        10, 0.1, 0, n=10, loss=2.0, loss_min=1.0, loss_max=9.0), 101.0))
    curve.add(0, at(schema.Step(11, 0.1, 0, n=0, loss=50.0), 102.0))
    assert curve.over("step").at(10) == (1.0, 2.0, 9.0)
    assert curve.over("step").last == 10


def test_another_value_is_followed_by_its_name():
    events = [start(1, 100.0), steps(1, [4.0], 101.0, samples_per_s=50.0),
              at(schema.Eval(1, {"accuracy": 0.5, "loss": 3.0}), 101.0),
              at(schema.Metric(2, {"accuracy": 0.25, "odd": None}), 102.0)]
    found = {}
    for name in ("loss", "eval accuracy", "eval loss", "accuracy", "learning rate",
                 "samples per second of a rank"):
        curve = RunCurve(name)
        for event in events:
            curve.add(0, event)
        found[name] = points(curve.over("step"))
        assert list(curve.names) == ["loss", "learning rate", "samples per second of a rank",
                                     "eval accuracy", "eval loss", "accuracy"]
    assert found == {"loss": {1: 4.0}, "eval accuracy": {1: 0.5}, "eval loss": {1: 3.0},
                     "accuracy": {2: 0.25}, "learning rate": {1: 0.1},
                     "samples per second of a rank": {1: 50.0}}


def test_memory_is_bounded():
    curve = RunCurve()
    curve.add(0, start(1, 0.0))
    for step in range(0, 40_000, 20):
        curve.add(0, steps(step + 19, [1.0] * 20, step / 10))
        curve.add(0, schema.Metric(step, {f"name {step}": 1.0}))
    assert max(len(curve.over(axis)) for axis in ("step", "time")) <= 2048
    assert len(curve.names) == 200

