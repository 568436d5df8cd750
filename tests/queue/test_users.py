"""Our waiting runs and those of another user of the machine: real users, a real shared folder, GPUs
of a stand-in driver."""

# ruff: noqa: F811  fixtures of others

from __future__ import annotations

import json
import os

import pytest

from gpu_engine.common.paths import queue_folder
from gpu_engine.devices import leases
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.queue import serve, wait

from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..devices.leases.conftest import _processes, alice, box, place  # noqa: F401
from .kit import hold as hold_slot
from .kit import over, queue, reason, state
from .test_gpus import gpus, hold  # noqa: F401

pytestmark = pytest.mark.usefixtures("gpus")


@pytest.fixture
def keys():
    return [leases.key(d) for d in discover().devices]


def take(user, name, run="3f2a", **said):
    """Have a user's run wait."""
    said = {"run": run, "queue": f"/home/{name}"} | said
    user.do(f"{name} = make(box.line, {said!r})")


def ours(box):
    """The run that each place of ours is for, by the name of the place."""
    return {f.path.name: f.said["run"] for f in leases.read(box.line) if f.uid == 0 and f.live}


def test_first_in_first_out(box, alice, keys, line):
    with hold(0):
        take(alice, "before", ids=[keys[0]])
        run, free = queue(devices={"ids": ["0"]}), queue(devices={"ids": ["1"]})
        wait_for(lambda: "GPU 0, for which a run of uid 61001 comes first" in reason(run))
        wait_for(lambda: state(free) == "completed")  # hers does not want that one
        take(alice, "behind", ids=[keys[0]])
        alice.do("before.close()")
        wait_for(lambda: "77aa" in reason(run))
        [(name, waits)] = ours(box).items()
        assert waits == run.id
        hers = [f.path.name for f in leases.read(box.line) if f.uid]
        assert name < max(hers), "she sees our run before hers"
        [said] = [f.said for f in leases.read(box.line) if f.uid == 0]
        assert (said["queue"], said["ids"], said["count"]) == (str(queue_folder()), [keys[0]], 0)
    over(run)
    assert state(run) == "completed"
    wait_for(lambda: ours(box) == {})


def test_cpu_slots_too_are_taken_in_turn(box, alice, line):
    """Two users whose runs wait for one slot: not both start when it becomes free."""
    key = leases.key(cpu_slots().devices[0])
    with hold_slot(0):
        take(alice, "hers", ids=[key], cpu=True)
        take(alice, "gpus", count=1)  # who waits for CPU slots is not behind who waits for GPUs
        run = queue()
        wait_for(lambda: "61001 comes first" in reason(run))
    alice.do(f"home = pathlib.Path({os.fspath(box.path.parent / 'alice')!r})\n"
             "slot = Device('cpu:0', 'cpu', 'CPU core 0', index=0)")
    (box.path.parent / "alice").mkdir()
    os.chown(box.path.parent / "alice", 61001, 61001)
    alice.do("lease = leases.acquire(home, [slot], '3f2a', share=True)\n"
             "hers.close()")
    wait_for(lambda: "held by run 3f2a of uid 61001" in reason(run))
    assert state(run) == "queued", "the slot was free, and it was her turn"
    alice.do("lease.close()")
    over(run)
    assert state(run) == "completed"


def test_a_place_is_kept_until_the_run_has_its_lease(box, line, monkeypatch):
    """Nobody who waits behind it comes between."""
    seen = []
    real = leases.take

    def watched(*given, **named):
        seen.append([*ours(box).values()])
        return real(*given, **named)

    monkeypatch.setattr(leases, "take", watched)
    waiter = wait.Waiter(queue(devices={"ids": ["0"]}, begin=False))
    while (taken := waiter._look()) is None:
        pass
    assert seen == [[waiter.run.id]]
    assert ours(box) == {}
    taken.close()


def test_nonsense_holds_up_nobody(box, alice, line):
    for n, said in enumerate((
            {"count": 0}, {"count": None}, {}, {"ids": 7}, {"ids": [["x"]]}, {"count": -1},
            {"count": 10 ** 30}, {"free": -5, "ids": ["\x1b[2J"]}, {"run": 7, "count": 3},
            {"queue": None, "count": 3}, {"priority": "x", "number": None, "ids": ["y"]},
            *({name: value, "ids": ["y"]} for name in ("count", "free", "priority", "number")
              for value in (1e300, -1e18, 10 ** 400, True)))):
        take(alice, f"nonsense{n}", **said)
    waiter = wait.Waiter(queue(devices={"ids": ["0"]}, begin=False))
    while (taken := waiter._look()) is None:
        pass
    taken.close()


def test_a_killed_supervisor_keeps_nobody_waiting(box, alice, keys, line):
    said = {"run": "3f2a", "queue": "/home/hers", "ids": keys}
    alice.do(f"open(f'{{line_at}}/{{time.time_ns():019d}}-00000000', 'w').write("
             f"{json.dumps(said)!r})")
    run = queue(devices={"ids": ["0"]})
    over(run)
    assert state(run) == "completed"


def test_our_places_outlive_a_supervisor_and_follow_our_own_order(box, alice, line):
    with hold(0):
        first, second = (queue(devices={"ids": ["0"]}) for _ in "ab")
        wait_for(lambda: "comes first" in reason(second) and len(ours(box)) == 2)
        before = ours(box)
        take(alice, "behind", ids=[])
        serve.move(second, "first")
        wait_for(lambda: second.id in reason(first))
        wait_for(lambda: ours(box) == before)  # and whose turn comes first is ours
        os.kill(first.state().pid, 9)
        wait_for(lambda: not first.supervised())
        wait_for(lambda: list(ours(box).values()) == [second.id])
        assert serve.ensure() == 1
        wait_for(lambda: ours(box) == before)
    for run in (first, second):
        run.stop()
