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
from gpu_engine.observe.steps import Step, StepEvents, Trainings, Values


def stepped(index, at, alive=None):
    return Step(index, "", None, None, None, alive, at)


def told(order, *, fresh=None, seconds=0.0):
    """What becomes of steps by the optimizers in `order`: two strings with a letter for each step,
    one for the curve, with "|" before each training, and one for the steps beside it."""
    trainings, curve, beside, out = Trainings(), "", "", []
    for at, index in enumerate(order):
        out += trainings.add(stepped(index, at, (fresh or {}).get(at)), at * seconds)
    out += trainings.end(len(order) * seconds)
    for one in out:
        letter = "abcdefgh"[one.step.optimizer]
        if one.on_curve:
            curve += ("|" if one.begins_training else "") + letter
        else:
            beside += letter
    assert sorted(one.step.number for one in out) == list(range(len(order)))
    return curve, beside


def test_a_gan_takes_turns():
    assert told([0, 1] * 100) == ("|" + "a" * 100, "b" * 100)
    assert told([1] * 5 + [0, 1, 1, 1, 1, 1] * 9) == ("|" + "b" * 50, "a" * 9)
    assert told([0] * 100 + [1] + ([0] * 5 + [1]) * 9) == ("|" + "a" * 145, "b" * 10)
    assert told([0] * 300 + [0, 1] * 5) == ("|" + "a" * 305, "b" * 5)  # one is trained alone first


def test_layer_by_layer_each_layer_is_a_training():
    assert told([0] * 60 + [1] * 60 + [2] * 60) \
        == ("|" + "a" * 60 + "|" + "b" * 60 + "|" + "c" * 60, "")
    assert told([0] * 60 + [1] * 7) == ("|" + "a" * 60 + "|" + "b" * 7, "")  # ended early


def test_slow_trainings_are_told_apart_before_fifty_steps():
    trainings = Trainings()
    for at in range(4):
        list(trainings.add(stepped(0, at), at * 6.0))
    out = [[one.begins_training for one in trainings.add(stepped(1, at), at * 6.0)]
           for at in range(4, 8)]
    assert out == [[], [], [True, False, False], [False]]


def test_a_new_optimizer_in_the_place_of_one_that_is_gone_begins_a_training():
    none = frozenset()
    assert told([0] * 9, fresh={0: none, 3: none, 6: none}) == ("|aaa|aaa|aaa", "")
    gans = {0: none, 1: frozenset({0}), 6: none, 7: frozenset({0})}
    assert told([0, 1] * 6, fresh=gans) == ("|aaa|aaa", "bbbbbb")


def test_an_inner_loop_with_an_optimizer_of_its_own_each_time_is_one_training():
    order, fresh = [0, 0, 0, 1] * 20, {4 * i: frozenset({1}) for i in range(20)}
    assert told(order, fresh=fresh) == ("|" + "a" * 60, "b" * 20)
    # Several tasks between two outer steps: recognised from the first outer step on.
    order, alive = [0, 0, 0, 0, 1] * 20, frozenset({1})
    fresh = {5 * i + at: alive if i else frozenset() for i in range(20) for at in (0, 2)}
    assert told(order, fresh=fresh) == ("|aa|aa" + "a" * 76, "b" * 20)


def test_pairs_one_after_the_other():
    assert told([0] * 60 + [1, 2] * 60) == ("|" + "a" * 60 + "|" + "b" * 60, "c" * 60)


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
    assert b"0.5" in b"".join(events.end(0))
    assert numbers({"a": {"b": 1, "c": True}, "d": "text"}) == {"a.b": 1}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 130)), max_size=12),
       st.lists(st.integers(0, 300), max_size=5), st.sampled_from([0.0, 0.3, 5.0]))
def test_no_step_is_lost_or_given_twice_and_their_order_stays(turns, news, seconds):
    order = [index for index, many in turns for _ in range(many)]
    trainings, out = Trainings(), []
    for at, index in enumerate(order):
        alive = frozenset(order[:at]) - {index} if at in news else None
        out += trainings.add(stepped(index, at, alive), at * seconds)
        assert len(trainings.kept) < 800
    out += trainings.end(len(order) * seconds)
    assert sorted(one.step.number for one in out) == list(range(len(order)))
    for index in set(order):
        mine = [one.step.number for one in out if one.step.optimizer == index]
        assert mine == sorted(mine)
    curve = [one.step.number for one in out if one.on_curve]
    assert curve == sorted(curve)
    if order:
        assert sum(one.begins_training for one in out) == trainings.number >= 1
