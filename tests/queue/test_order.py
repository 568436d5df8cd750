"""Which waiting runs start, and what the others are told: worked out by hand, and rules that hold
for any line."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.queue.order import (
    After,
    DeviceNow,
    Never,
    Request,
    Start,
    Turn,
    Wait,
    Wants,
    decide,
)

GIB = 1 << 30
NOW, MONO = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1)), 1000.0


def gpu(index, free=True, why="is held by run 77aa", since=900.0, memory=None, usable=True):
    return DeviceNow(str(index), f"GPU {index}", free, "" if free else why, usable,
                     memory=memory if memory is not None else (80 * GIB if free else 10 * GIB),
                     total=80 * GIB, since=since if free else None)


def machine(*devices):
    return {d.id: d for d in devices}


def ask(name, *ids, count=0, begin=None, after=None, owner=None, **wants):
    return Request(name, Wants(tuple(map(str, ids)), count, **wants), begin, after, owner)


def first(count, ids):
    return ids[:count]


def answers(line, devices, choose=first):
    out = decide(line, devices, now=NOW, monotonic=MONO, choose=choose)
    return {d.id: "their turn" if isinstance(d, Turn) else
            d.devices if isinstance(d, Start) else d.reason for d in out}


def test_in_order_on_named_devices():
    free = machine(gpu(0), gpu(1, free=False), gpu(2))
    said = answers([ask("a", 0), ask("b", 0, 1), ask("c", 0), ask("d", 2)], free)
    assert said == {
        "a": ("0",), "d": ("2",),
        "b": "for GPU 0, for which run a comes first; GPU 1, which is held by run 77aa",
        "c": "for GPU 0, for which run a comes first"}


def test_a_free_device_is_kept_for_the_earlier_run_that_still_lacks_another():
    """The large run at the head would wait for ever if small ones kept taking what gets free."""
    said = answers([ask("large", 0, 1), ask("small", 0), ask("any", count=1)],
                   machine(gpu(0), gpu(1, free=False)))
    assert said == {"large": "for GPU 1, which is held by run 77aa",
                    "small": "for GPU 0, for which run large comes first",
                    "any": "for runs ahead of it"}


def test_any_devices():
    two = machine(gpu(0, free=False), gpu(1), gpu(2))
    assert answers([ask("a", count=2)], two) == {"a": ("1", "2")}
    assert answers([ask("a", count=3), ask("b", count=1)], two) == {
        "a": "for any 3 GPUs: 2 of 3 now", "b": "for runs ahead of it"}
    assert answers([ask("a", count=4)], two) == {"a": "for any 4 GPUs; this machine has 3"}
    assert answers([ask("a", count=2)], two, choose=lambda n, ids: None) == {
        "a": "for any 2 GPUs that go together"}
    within = answers([ask("a", count=1, within=("0",))], two)
    assert within == {"a": "for any 1 GPU: none of 1 now"}


def test_with_so_much_memory():
    devices = machine(gpu(0, memory=15 * GIB), gpu(1, free=False, memory=30 * GIB))
    asked = {"count": 1, "free": 20 * GIB}
    assert answers([ask("a", **asked)], devices) == {
        "a": "for any 1 GPU with 20.0 GiB free: none of 2 now"}
    assert answers([ask("a", share=True, **asked)], devices) == {"a": ("1",)}
    small = machine(DeviceNow("0", "GPU 0", True, "", memory=8 * GIB, total=8 * GIB, since=0.0))
    assert answers([ask("a", **asked)], small) == {
        "a": "for any 1 GPU with 20.0 GiB free; 0 here are large enough"}


def test_a_time_and_another_run_first():
    free = machine(gpu(0))
    late = NOW + 3600
    said = answers([ask("a", 0, begin=late), ask("b", 0, after=After("x", "running")),
                    ask("c", 0)], free)
    assert said == {"a": "until 13:00", "b": "for run x to complete", "c": ("0",)}
    assert answers([ask("a", 0, begin=NOW + 86400)], free)["a"].endswith("Nov 23 12:00")
    assert answers([ask("a", 0, after=After("x", "completed"))], free) == {"a": ("0",)}


@pytest.mark.parametrize(("state", "words"), [
    ("failed", "failed"), ("stopped", "was stopped"), ("lost", "is lost"),
    (None, "does not exist")])
def test_a_run_that_will_never_complete_is_not_waited_for(state, words):
    [said] = decide([ask("b", 0, after=After("x", state))], machine(gpu(0)), now=NOW,
                    monotonic=MONO, choose=first)
    assert said == Never("b", f"run x, which it was to follow, {words}")


def test_free_for_a_while():
    devices = machine(gpu(0, since=MONO - 20))
    assert answers([ask("a", 0, free_for=60.0)], devices) == {
        "a": "for GPU 0, which has been free for 20 s of the 60 s it needs"}
    assert answers([ask("a", 0, free_for=20.0)], devices) == {"a": ("0",)}


def test_a_device_that_is_not_there():
    assert answers([ask("a", 5), ask("b", 0)], machine(gpu(0))) == {
        "a": "for 5, which this machine does not have now", "b": ("0",)}


def test_another_users_run_is_not_started_but_keeps_its_turn():
    line = [ask("place-1", 0, owner="alice"), ask("b", 0), ask("c", 1)]
    waits = {"b": "for GPU 0, for which a run of alice comes first", "c": ("1",)}
    assert answers(line, machine(gpu(0), gpu(1))) == {"place-1": "their turn"} | waits
    busy = answers([ask("place-1", 0, 2, owner="alice"), *line[1:]],
                   machine(gpu(0), gpu(1), gpu(2, free=False)))
    assert busy == waits
    either = answers([ask("place-1", count=1, owner="alice"), *line[1:]], machine(gpu(0), gpu(1)))
    assert either == {"place-1": "their turn"} | {
        name: f"for GPU {n}, for which a run of alice comes first" for n, name in enumerate("bc")}


_ids = st.sampled_from(["0", "1", "2", "3"])
_wants = st.one_of(
    st.builds(Wants, ids=st.lists(_ids, min_size=1, max_size=3, unique=True).map(tuple)),
    st.builds(Wants, count=st.integers(1, 4), share=st.booleans(),
              free=st.none() | st.just(20 * GIB)))
_line = st.lists(st.tuples(_wants, st.booleans(), st.booleans()), max_size=8)


@settings(max_examples=150, deadline=None)
@given(_line, st.lists(st.booleans(), min_size=4, max_size=4))
def test_nobody_overtakes_and_no_device_is_given_twice(line, free):
    devices = machine(*(gpu(i, free=f) for i, f in enumerate(free)))
    requests = [Request(str(n), wants, begin=NOW + 60 if late else None,
                        owner="bob" if theirs else None)
                for n, (wants, late, theirs) in enumerate(line)]
    said = {d.id: d for d in decide(requests, devices, now=NOW, monotonic=MONO, choose=first)
            if not isinstance(d, Turn)}
    assert list(said) == [r.id for r in requests if r.owner is None or r.begin is not None]
    given_to: dict[str, str] = {}
    waiting_for: set[str] = set()
    for request in requests:
        wants = request.wants
        able = set(wants.ids or devices)
        decision = said.get(request.id)
        if isinstance(decision, Start):
            assert request.owner is None
            assert request.begin is None
            assert len(decision.devices) == (len(wants.ids) or wants.count)
            assert set(decision.devices) <= able
            assert not set(decision.devices) & (set(given_to) | waiting_for)
            assert all(devices[i].free or wants.share for i in decision.devices)
            given_to |= dict.fromkeys(decision.devices, request.id)
        elif request.begin is None:
            # It waits for a reason: what is open to it is too little.
            left = able - set(given_to) - waiting_for
            ready = [i for i in left if (devices[i].free or wants.share)
                     and (wants.free is None or devices[i].memory >= wants.free)]
            assert request.owner or len(ready) < (len(wants.ids) or wants.count)
            assert request.owner or isinstance(decision, Wait)
            waiting_for |= able


def test_a_long_line_costs_little():
    """Only the runs that could start are worked out; the rest of a thousand is passed over."""
    asked = []

    def choose(count, ids):
        asked.append(count)
        return

    line = [ask(str(n), count=2) for n in range(1000)]
    out = decide(line, machine(gpu(0), gpu(1)), now=NOW, monotonic=MONO, choose=choose)
    assert len(out) == 1000
    assert asked == [2]
