"""Who stands before whom, which waiting runs start, and what the others are told: worked out by
hand, and rules that hold for any line."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.queue import turns
from gpu_engine.queue.turns import (
    DeviceNow,
    Request,
    Standing,
    Start,
    Turn,
    Wait,
    Wants,
    decide,
    early,
    in_turn,
)
from gpu_engine.runs.waiting import Entry

GIB = 1 << 30
NOW, MONO = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1)), 1000.0


def gpu(index, free=True, why="is held by run 77aa", since=900.0, memory=None, usable=True):
    return DeviceNow(str(index), f"GPU {index}", free, "" if free else why, usable,
                     memory=memory if memory is not None else (80 * GIB if free else 10 * GIB),
                     total=80 * GIB, since=since if free else None)


def machine(*devices):
    return {d.id: d for d in devices}


def ask(name, *ids, count=0, owner=None, **wants):
    return Request(name, Wants(tuple(map(str, ids)), count, **wants), owner)


def first(count, ids):
    return ids[:count]


def answers(line, devices, choose=first):
    out = decide(line, devices, monotonic=MONO, choose=choose)
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


def entry(**more):
    return Entry(submitted=NOW, number=1.0, host="h", **more)


def test_a_time_and_another_run_first():
    assert early(entry(begin=NOW + 3600), None, NOW) == ("until 13:00", False)
    assert early(entry(begin=NOW + 86400), None, NOW)[0].endswith("Nov 23 12:00")
    assert early(entry(begin=NOW - 1), None, NOW) is None
    assert early(entry(after="x"), "running", NOW) == ("for run x to complete", False)
    assert early(entry(after="x"), "completed", NOW) is None


@pytest.mark.parametrize(("state", "words"), [
    ("failed", "failed"), ("stopped", "was stopped"), ("lost", "is lost"),
    (None, "does not exist")])
def test_a_run_that_will_never_complete_is_not_waited_for(state, words):
    assert early(entry(after="x"), state, NOW) == (f"run x, which it was to follow, {words}", True)


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
_line = st.lists(st.tuples(_wants, st.booleans()), max_size=8)


@settings(max_examples=150, deadline=None)
@given(_line, st.lists(st.booleans(), min_size=4, max_size=4))
def test_nobody_overtakes_and_no_device_is_given_twice(line, free):
    devices = machine(*(gpu(i, free=f) for i, f in enumerate(free)))
    requests = [Request(str(n), wants, "bob" if theirs else None)
                for n, (wants, theirs) in enumerate(line)]
    said = {d.id: d for d in decide(requests, devices, monotonic=MONO, choose=first)
            if not isinstance(d, Turn)}
    assert list(said) == [r.id for r in requests if r.owner is None]
    given_to: dict[str, str] = {}
    waiting_for: set[str] = set()
    for request in requests:
        wants = request.wants
        able = set(wants.ids or devices)
        decision = said.get(request.id)
        if isinstance(decision, Start):
            assert len(decision.devices) == (len(wants.ids) or wants.count)
            assert set(decision.devices) <= able
            assert not set(decision.devices) & (set(given_to) | waiting_for)
            assert all(devices[i].free or wants.share for i in decision.devices)
            given_to |= dict.fromkeys(decision.devices, request.id)
        else:
            # It waits for a reason: what is open to it is too little.
            left = able - set(given_to) - waiting_for
            ready = [i for i in left if (devices[i].free or wants.share)
                     and (wants.free is None or devices[i].memory >= wants.free)]
            assert request.owner or len(ready) < (len(wants.ids) or wants.count)
            assert request.owner or isinstance(decision, Wait)
            waiting_for |= able


@settings(max_examples=150, deadline=None)
@given(_line, st.lists(st.booleans(), min_size=4, max_size=4))
def test_as_each_decides_for_itself_no_two_start_on_one_device(line, free):
    """Whoever starts takes its devices under the lock; the others then see them held. One after the
    other, in whatever order they come to look."""
    requests = [Request(str(n), wants) for n, (wants, _) in enumerate(line)]
    for first_to_look in (requests, requests[::-1]):
        there, left = list(free), list(requests)
        for me in first_to_look:
            devices = machine(*(gpu(i, free=f) for i, f in enumerate(there)))
            mine = next(d for d in decide(left, devices, monotonic=MONO, choose=first)
                        if d.id == me.id)
            if isinstance(mine, Start):
                assert me.wants.share or all(there[int(i)] for i in mine.devices)
                there = [f and str(i) not in mine.devices for i, f in enumerate(there)]
                left.remove(me)


def stand(owner, file, priority, number, run):
    return Standing(Request(run, Wants(count=1)), (owner, "/q"), file,
                    (-priority, number, 0.0, run))


_standings = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 99),
                                st.integers(-1, 1), st.integers(0, 9)), max_size=12)


@settings(max_examples=200, deadline=None)
@given(_standings, st.randoms())
def test_an_owner_orders_its_own_runs_and_moves_nobody_elses(given_runs, random):
    runs = [stand(owner, None if file is None else f"{file:03}-{n}", priority, number, str(n))
            for n, (owner, file, priority, number) in enumerate(given_runs)]
    owner_of = {run.request.id: run.owner for run in runs}
    line = [r.id for r in in_turn(runs)]
    assert sorted(line) == sorted(owner_of)
    for owner in set(owner_of.values()):
        own = sorted((r for r in runs if r.owner == owner), key=lambda r: r.order)
        assert [i for i in line if owner_of[i] == owner] == [r.request.id for r in own]
    shuffled = random.sample(runs, len(runs))
    assert [r.id for r in in_turn(shuffled)] == line
    # Another priority of one's own run changes whose run goes first, and no owner's places.
    moved = [replace(r, order=(random.choice([-1.0, 0.0, 1.0]), *r.order[1:]))
             if r.file is not None and r.owner[0] == 0 else r for r in runs]
    if all(r.file is not None for r in runs):
        assert [owner_of[r.id] for r in in_turn(moved)] == [owner_of[i] for i in line]
        assert [i for i in line if owner_of[i][0]] == [
            r.id for r in in_turn(moved) if owner_of[r.id][0]]


def test_first_come_first_served_and_so_many_places_and_no_more(monkeypatch):
    monkeypatch.setattr(turns, "PLACES", 2)
    runs = [stand(1, "1", 0, 1, "a"), stand(1, "2", 0, 2, "b"), stand(1, "3", 0, 3, "c"),
            stand(2, "4", 0, 1, "d"), stand(1, "0", 0, 4, "e"), stand(2, None, 9, 2, "f")]
    assert [r.id for r in in_turn(runs)] == ["a", "b", "f", "d", "c", "e"]


def test_a_long_line_costs_little():
    """Only the runs that could start are worked out; the rest of a thousand is passed over."""
    asked = []

    def choose(count, ids):
        asked.append(count)
        return

    line = [ask(str(n), count=2) for n in range(1000)]
    out = decide(line, machine(gpu(0), gpu(1)), monotonic=MONO, choose=choose)
    assert len(out) == 1000
    assert asked == [2]
