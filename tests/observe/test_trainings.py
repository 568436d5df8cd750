"""Which steps are on the curve, which stand beside it, and which begin another training. The common
kinds of loops are worked out by hand; for any order of steps, none is lost or given twice."""

from __future__ import annotations

import json
from collections import deque
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.observe import steps
from gpu_engine.observe.loggers import numbers
from gpu_engine.observe.steps import Step, StepEvents, Values


def told(order, begins=()):
    """What becomes of steps by the optimizers in `order`: two strings with a letter for each step,
    one for the curve, with "|" before each further training, and one for the steps beside it.
    `begins`: the places of those of a new optimizer while no other exists."""
    events, curve, beside, on_curve = StepEvents(), "", "", order[0] if order else 0
    for at, index in enumerate([*order, None]):
        step = deque(() if index is None else [Step(index, "", 0.5, None, None, at in begins)])
        for line in events.collect(step, 0, over=index is None):
            event = json.loads(line)
            if event["kind"] == "training":
                on_curve, curve = event["optimizer"], curve + "|"
            else:
                curve += "abcdefgh"[on_curve] * event.get("n", 1)
                beside += "".join("abcdefgh"[int(i)] * other.get("n", 1)
                                  for i, other in event.get("others", {}).items())
    assert events.step == len(curve.replace("|", ""))
    return curve, beside


def test_a_gan_takes_turns():
    assert told([0, 1] * 100) == ("a" * 100, "b" * 100)
    assert told([1] * 5 + [0, 1, 1, 1, 1, 1] * 9) == ("b" * 50, "a" * 9)
    assert told([0] * 300 + [0, 1] * 5) == ("a" * 305, "b" * 5)  # one is trained alone first


def test_layer_by_layer_each_layer_is_a_training():
    assert told([0] * 60 + [1] * 60 + [2] * 60) == (
        "a" * 60 + "|" + "b" * 60 + "|" + "c" * 60, "")
    assert told([0] * 60 + [1, 2] * 60) == ("a" * 60 + "|" + "b" * 60, "c" * 60)
    # One that has stepped before may be at its turn, as in a GAN with several steps each.
    assert told(([0] * 5 + [1] * 5) * 3) == ("a" * 5 + "|" + "b" * 15, "a" * 10)
    assert told([0] * 9 + [1] * 9 + [0] * 60) == ("a" * 9 + "|" + "b" * 9 + "|" + "a" * 60, "")


def test_a_new_optimizer_in_the_place_of_one_that_is_gone_begins_a_training():
    assert told([0] * 9, {0, 3, 6}) == ("aaa|aaa|aaa", "")
    assert told([0, 1] * 6, {0, 6}) == ("aaa|aaa", "bbbbbb")


def test_of_what_goes_to_a_logger_the_latest_numbers_are_told_once_a_second(monkeypatch):
    clock, events = SimpleNamespace(now=100.0), StepEvents()
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(steps, "time", clock)

    def told(seconds, *values):
        clock.now += seconds
        lines = events.collect(deque(Values(each, latest=True) for each in values), 0)
        return [{k: v for k, v in json.loads(line).items() if k not in ("t", "kind", "step")}
                for line in lines]

    assert told(0, {"acc": 0.1}) == [{"acc": 0.1}]
    assert told(0.1, {"acc": 0.2, "odd": "text"}, {"acc": 0.3}) == []
    assert told(1) == [{"acc": 0.3}]
    assert told(2) == []
    assert told(0, {"acc": 0.4}) == [{"acc": 0.4}]
    assert told(0.1, {"acc": 0.5}) == []
    assert b"0.5" in b"".join(events.collect(deque(), 0, over=True))
    assert numbers({"a": {"b": 1, "c": True}, "d": "text"}) == {"a.b": 1}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 130)), max_size=12),
       st.sets(st.integers(0, 300), max_size=5))
def test_no_step_is_lost_or_given_twice(turns, begins):
    order = [index for index, many in turns for _ in range(many)]
    curve, beside = told(order, begins)
    assert sorted(curve.replace("|", "") + beside) == sorted("abcdefgh"[i] for i in order)
