"""Who stands before whom, which waiting runs start, and what the others are told: worked out by
hand, and rules that hold for any line."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.devices.records import Device
from gpu_engine.queue.turns import (
    DeviceNow,
    GivesWay,
    Request,
    Start,
    Wait,
    Wants,
    decide,
    early,
    in_turn,
    make_room,
    surely_behind,
)
from gpu_engine.runs.waiting import Entry

GIB = 1 << 30
NOW = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))


def gpu(index, free=True, why="is held by run 77aa", memory=None, usable=True):
    return DeviceNow(device(index, 80 * GIB), "" if free else why, usable,
                     memory if memory is not None else (80 * GIB if free else 10 * GIB))


def device(index, total=None):
    return Device(str(index), "gpu", "H200", index, memory_total=total)


def machine(*devices):
    return {d.device.id: d for d in devices}


def ask(name, *ids, count=0, owner=None, **wants):
    return Request(name, Wants(tuple(map(str, ids)), count, **wants), owner)


def first(count, ids):
    return ids[:count]


def answers(line, devices, choose=first):
    """What each of our runs decides for itself."""
    out = {me.id: decide(line[:at], me, devices, choose=choose)
           for at, me in enumerate(line) if me.owner is None}
    return {name: d.devices if isinstance(d, Start) else d.reason for name, d in out.items()}


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
    unknown = machine(DeviceNow(device(0)))  # as one tells no figure
    assert answers([ask("a", **asked)], unknown) == {
        "a": "for any 1 GPU with 20.0 GiB free: none of 1 now"}
    small = machine(DeviceNow(device(0, 8 * GIB), memory=8 * GIB))
    assert answers([ask("a", **asked)], small) == {
        "a": "for any 1 GPU with 20.0 GiB free; this machine has 0"}


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


def test_a_device_that_is_not_there():
    assert answers([ask("a", 5), ask("b", 0)], machine(gpu(0))) == {
        "a": "for 5, which this machine does not have now", "b": ("0",)}


def test_a_run_for_more_devices_than_there_are_keeps_none_from_others():
    assert answers([ask("a", count=4), ask("b", count=2)], machine(gpu(0), gpu(1))) == {
        "a": "for any 4 GPUs; this machine has 2", "b": ("0", "1")}
    elsewhere = ask("a", hosts=("any",))  # as many as the host that takes it has
    assert answers([elsewhere, ask("b", count=1)], machine(gpu(0)))["b"] == ("0",)


def test_behind_whom_a_run_waits_without_asking_the_machines():
    ab, a = {"a": (), "b": ()}, {"a": ()}
    one, two = Wants(count=1), Wants(count=2)
    assert surely_behind(two, a, one, ab)
    assert not surely_behind(one, a, two, ab)  # where that needs more than there is
    assert not surely_behind(one, ab, one, a)
    assert not surely_behind(one, a, Wants(count=1, free=80 * GIB), a)
    assert surely_behind(Wants(count=1, free=80 * GIB), a, one, a)
    assert not surely_behind(one, a, Wants(count=1, cpu=True), a)
    assert surely_behind(Wants(), {"a": ("0", "1")}, Wants(), {"a": ("1",)})
    assert surely_behind(Wants(), a, Wants(), {"a": ("1",), "b": ("0",)})
    assert not surely_behind(Wants(), {"a": ("0",)}, Wants(), {"a": ("1",)})
    assert not surely_behind(Wants(), {"a": ("0",)}, one, a)


def test_another_users_run_comes_first_like_one_of_ours():
    line = [ask("theirs", 0, owner="alice"), ask("b", 0), ask("c", 1)]
    waits = {"b": "for GPU 0, for which a run of alice comes first", "c": ("1",)}
    assert answers(line, machine(gpu(0), gpu(1))) == waits
    either = answers([ask("theirs", count=2, owner="alice"), *line[1:]],
                     machine(gpu(0), gpu(1, free=False)))
    assert either == {name: f"for GPU {n}, for which a run of alice comes first"
                      for n, name in enumerate("bc")}


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
    said = {me.id: decide(requests[:at], me, devices, choose=first)
            for at, me in enumerate(requests)}
    given_to: dict[str, str] = {}
    waiting_for: set[str] = set()
    for request in requests:
        wants = request.wants
        able = set(wants.ids or devices)
        decision = said[request.id]
        if isinstance(decision, Start):
            assert len(decision.devices) == (len(wants.ids) or wants.count)
            assert set(decision.devices) <= able
            assert not set(decision.devices) & (set(given_to) | waiting_for)
            assert all(not devices[i].why or wants.share for i in decision.devices)
            given_to |= dict.fromkeys(decision.devices, request.id)
        else:
            # It waits for a reason: what is open to it is too little.
            left = able - set(given_to) - waiting_for
            ready = [i for i in left if (not devices[i].why or wants.share)
                     and (wants.free is None or devices[i].memory >= wants.free)]
            assert len(ready) < (len(wants.ids) or wants.count)
            assert isinstance(decision, Wait)
            waiting_for |= able if len(able) >= wants.count else set()


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.randoms())
def test_everybodys_first_run_comes_before_anybodys_second(counts, random):
    """And each owner orders its own runs: which of them has which file changes nothing."""
    owners = [[ask(f"{owner}-{k}", count=1) for k in range(count)]
              for owner, count in enumerate(counts)]
    times = random.sample(range(100), 12)
    files = [[f"{times.pop():03}" for _ in own] for own in owners]
    line = [r.id for r in in_turn(zip(owners, files, strict=True))]
    assert sorted(line) == sorted(r.id for own in owners for r in own)
    assert [name[2:] for name in line] == sorted(name[2:] for name in line)
    for k in range(4):
        order = [int(name[0]) for name in line if name.endswith(f"-{k}")]
        assert order == sorted(order, key=lambda owner, k=k: sorted(files[owner])[k])
    assert [r.id for r in in_turn(zip(owners, map(reversed, files), strict=True))] == line


def test_who_has_no_file_yet_comes_behind_others_with_as_many_runs():
    own, theirs = [ask("a"), ask("b")], [ask("x"), ask("y")]
    assert [r.id for r in in_turn([(own, ["2"]), (theirs, ["1", "3"])])] == ["x", "a", "y", "b"]


# --- runs that give way ---------------------------------------------------------------------------

def room(line, devices, *giving):
    """Which of the runs `giving` (name, devices) leave, who began last last, and for whom."""
    runs = [GivesWay(name, tuple(map(str, ids)), at) for at, (name, *ids) in enumerate(giving)]
    return {name: request.id for name, request in make_room(line, runs, devices).items()}


def test_who_gives_way_stands_behind_all_others():
    a, b, c = ask("a", 0, give_way=True), ask("b", 0), ask("c", 0, owner="ann")
    line = in_turn([([b, a], ["1", "2"]), ([c], ["3"])])
    assert [r.id for r in line] == ["b", "c", "a"]


def test_as_few_make_room_as_are_needed_and_who_began_last_goes_first():
    held = machine(gpu(0, free=False), gpu(1, free=False), gpu(2, free=False))
    old, new = ("old", 0), ("new", 1)
    assert room([ask("a", count=1)], held, old, new) == {"new": "a"}
    assert room([ask("a", count=2)], held, old, new) == {"new": "a", "old": "a"}
    assert room([ask("a", 0)], held, old, new) == {"old": "a"}
    assert room([ask("a", count=1), ask("b", count=1)], held, old, new) == {"new": "a", "old": "b"}
    # One whose devices are not needed stays, though it began last.
    assert room([ask("a", 0, 2)], held, ("two", 0, 2), new) == {"two": "a"}


def test_nobody_makes_room_for_who_can_start_without_or_not_even_then():
    one_free = machine(gpu(0), gpu(1, free=False), gpu(2, free=False))
    assert room([ask("a", count=1)], one_free, ("x", 1)) == {}
    assert room([ask("a", count=2)], one_free, ("x", 1)) == {"x": "a"}
    assert room([ask("a", count=3)], one_free, ("x", 1)) == {}  # GPU 2 is another's
    assert room([ask("a", count=4)], one_free, ("x", 1)) == {}
    assert room([ask("a", 1, share=True)], one_free, ("x", 1)) == {}
    # Who comes first keeps what it could use from those behind it, as in the line.
    assert room([ask("a", 1, 2), ask("b", 1)], one_free, ("x", 1)) == {}
    assert room([ask("a", 2), ask("b", 1)], one_free, ("x", 1)) == {"x": "b"}
