"""Our waiting runs and those of another user of the machine: real users, a real shared folder, GPUs
of a stand-in driver."""

# ruff: noqa: F811  fixtures of others

from __future__ import annotations

import os

import pytest

from gpu_engine.common.paths import queue_folder
from gpu_engine.devices import leases
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.leases import held
from gpu_engine.queue import change, places
from gpu_engine.queue.waiter import Waiter

from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..devices.leases.conftest import _processes, alice, box, place  # noqa: F401
from .kit import hold as hold_slot
from .kit import queue, state, turn_until
from .test_gpus import gpus, hold  # noqa: F401

pytestmark = pytest.mark.usefixtures("gpus")


@pytest.fixture
def keys():
    return [leases.key(d) for d in discover().devices]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(places, "_LOOK", 0.0)


def take(user, name, run="3f2a", **said):
    """Have a user's run wait."""
    said = {"run": run, "queue": f"/home/{name}"} | said
    user.do(f"{name} = held.make(box.line, {said!r})")


def ours(box):
    """The run that each place of ours is for, by the name of the place."""
    return {f.path.name: f.said["run"] for f in held.read(box.line) if f.uid == 0 and f.live}


def test_first_in_first_out(box, alice, keys, line):
    with hold(0):
        take(alice, "before", keys=[keys[0]])
        run, free = queue(devices={"ids": ["0"]}), queue(devices={"ids": ["1"]})
        turn_until(line, lambda: "61001" in (run.state().reason or ""))
        assert "GPU 0, for which a run of uid 61001 comes first" in run.state().reason
        turn_until(line, lambda: state(free) == "completed")  # hers does not want that one
        take(alice, "behind", keys=[keys[0]])
        alice.do("before.close()")
        turn_until(line, lambda: "77aa" in run.state().reason)
        [(name, waits)] = ours(box).items()
        assert waits == run.id
        assert name < alice.ask("behind.path.name"), "she sees our run before hers"
    turn_until(line, lambda: state(run) == "completed")
    turn_until(line, lambda: ours(box) == {})


def test_what_another_user_sees_of_ours(box, alice, line):
    """By the code that she runs: our run before hers, and what it wants."""
    with hold(0):
        run = queue(devices={"ids": ["0"]})
        turn_until(line, lambda: ours(box))
        alice.do("mine = Places(pathlib.Path('/home/alice/queue'))\n"
                 "mine.hold([('5511', Wants(count=2))], {})")
        keys = {leases.key(d): d.id for d in discover().devices}
        [first, second] = alice.ask(
            "[(r.owner, r.wants.ids, r.wants.count) for r in mine.among("
            f"[Request('5511', Wants(count=2))], {keys!r})]")
        assert first == ["root", ["0"], 0]
        assert second == [None, [], 2]
        assert alice.ask("mine.among([Request('5511', Wants(count=2, cpu=True))], {})[0].owner"
                         ) is None, "who waits for CPU slots is not behind who waits for GPUs"
    run.stop()


def test_cpu_slots_too_are_taken_in_turn(box, alice, line):
    """Two users whose runs wait for one slot: not both start when it becomes free."""
    key = leases.key(cpu_slots().devices[0])
    with hold_slot(0):
        take(alice, "hers", keys=[key], cpu=True)
        run = queue()
        turn_until(line, lambda: "61001 comes first" in (run.state().reason or ""))
    for _ in range(3):
        line.turn()
    assert line.starts.starting == {}, "the slot is free, and it is her turn"
    alice.do(f"home = pathlib.Path({os.fspath(box.path.parent / 'alice')!r})\n"
             "slot = Device('cpu:0', 'cpu', 'CPU core 0', index=0)")
    (box.path.parent / "alice").mkdir()
    os.chown(box.path.parent / "alice", 61001, 61001)
    alice.do("lease = leases.acquire(home, [slot], '3f2a', share=True)\n"
             "hers.close()")
    turn_until(line, lambda: "held by run 3f2a of uid 61001" in run.state().reason)
    alice.do("lease.close()")
    turn_until(line, lambda: state(run) == "completed")


def test_a_place_is_kept_until_the_run_has_its_lease(box, alice, line, monkeypatch):
    """Nobody who waits behind it comes between."""
    seen = []
    begin = line.starts.begin

    def watched(name, *more):
        begin(name, *more)
        line._line_of = None
        line._in_order()
        seen.append([*ours(box).values()])

    monkeypatch.setattr(line.starts, "begin", watched)
    run = queue(devices={"ids": ["0"]})
    turn_until(line, lambda: state(run) == "completed")
    assert seen == [[run.id]]


def test_who_leaves_free_devices_untouched_is_passed_over(box, alice, line, monkeypatch):
    monkeypatch.setattr(places, "PATIENCE", 1.0)
    with hold(0):
        for name in ("idle", "idle_too"):
            take(alice, name, count=1)
        run = queue(devices={"ids": ["0"]})
        waits = queue(devices={"pick": 1})
        turn_until(line, lambda: "waits for runs ahead of it" in (waits.state().reason or "")
                   or "61001" in (waits.state().reason or ""))
        # GPUs 1 and 2 are free for her, and she does not take them.
        turn_until(line, lambda: state(waits) == "completed")
        assert state(run) == "queued"
        turn_until(line, lambda: "77aa" in run.state().reason)
    turn_until(line, lambda: state(run) == "completed")


@pytest.mark.parametrize("said", [
    {"count": 0}, {"count": None}, {}, {"keys": 7}, {"keys": [["x"]]}, {"count": -1},
    {"count": 10 ** 30}, {"free_bytes": -5, "keys": ["\x1b[2J"]}, {"run": 7, "count": 3},
    {"queue": None, "count": 3}])
def test_nonsense_holds_up_nobody(box, alice, line, said):
    """It must not end the process that starts runs either."""
    take(alice, "nonsense", **said)
    run = queue(devices={"ids": ["0"]})
    turn_until(line, lambda: not run.state().live)
    assert state(run) == "completed", run.state()


def test_a_killed_waiter_keeps_nobody_waiting(box, alice, keys, line):
    take(alice, "hers", keys=keys)
    alice.do("os.close(hers._fd)\nhers._fd = -1")
    run = queue(devices={"ids": ["0"]})
    turn_until(line, lambda: state(run) == "completed")


def test_our_places_outlive_the_waiter_and_follow_our_own_order(box, alice, line):
    with hold(0):
        first, second = (queue(devices={"ids": ["0"]}) for _ in "ab")
        turn_until(line, lambda: "comes first" in (second.state().reason or ""))
        before = ours(box)
        assert list(before.values()) == [first.id, second.id]
        change.move(second, "first")
        turn_until(line, lambda: second.id in first.state().reason)
        assert ours(box) == dict(zip(before, [second.id, first.id], strict=True))
        for place in line._places._held.values():  # the waiter is killed, and another one begins
            os.close(place._fd)
            place._fd = -1
        assert ours(box) == {}
        second.stop()
        again = Waiter(queue_folder())
        try:
            turn_until(again, lambda: ours(box))
            assert ours(box) == {max(before): first.id}, "its place, and none of what is over"
            assert [f.path.name for f in held.read(box.line)] == [max(before)]
        finally:
            again._places.close()
            for devices in again._devices.values():
                devices.close()
    first.stop()


def test_so_many_places_and_no_more(box, line, monkeypatch):
    """Who queues a thousand runs leaves room for others between."""
    monkeypatch.setattr(places, "MOST", 2)
    with hold(0):
        runs = [queue(devices={"ids": ["0"]}) for _ in range(3)]
        turn_until(line, lambda: len(ours(box)) == 2)
        assert list(ours(box).values()) == [r.id for r in runs[:2]]
        runs[0].stop()
        turn_until(line, lambda: list(ours(box).values()) == [r.id for r in runs[1:]])
    for run in runs[1:]:
        run.stop()


def test_a_folder_that_can_not_be_written_stops_no_run(box, line, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(held, "make", full)
        run = queue(devices={"ids": ["0"]})
        turn_until(line, lambda: state(run) == "completed")
    assert "no place among the users' waiting runs" in caplog.text
