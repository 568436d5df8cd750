"""Our waiting runs and those of another user of the machine, one of them hostile: real users, a
real shared folder, GPUs of a stand-in driver."""

from __future__ import annotations

import json

import pytest

from gpu_engine.box import line as shared
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.queue import places
from gpu_engine.queue.waiter import Waiter, queue_folder

from ..box.conftest import _processes, alice, box, place  # noqa: F401
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from .kit import queue, state, turn_until
from .test_gpus import gpus, hold  # noqa: F401

pytestmark = pytest.mark.usefixtures("gpus")


@pytest.fixture
def keys():
    return [leases.key(d) for d in discover().devices]


def take(alice, name, **wants):  # noqa: F811
    alice.do(f"{name} = line.take_place(box, line.Wants(**{wants!r}))")


def test_who_was_there_before_goes_first_and_nobody_else(box, alice, keys, line):  # noqa: F811
    with hold(0):
        take(alice, "before", keys=(keys[0],))
        run, free = queue(devices={"ids": ["0"]}), queue(devices={"ids": ["1"]})
        turn_until(line, lambda: "61001" in (run.state().reason or ""))
        assert "GPU 0, for which a run of" in run.state().reason
        turn_until(line, lambda: state(free) == "completed")  # hers does not want that one
        # She comes again, behind; what she writes and when the file was made changes nothing.
        take(alice, "behind", keys=(keys[0],))
        alice.do("import os\nfor f in os.listdir(box.line):\n"
                 "    p = os.path.join(box.line, f)\n"
                 "    if os.stat(p).st_uid == os.getuid(): os.utime(p, (0, 0))")
        alice.do("before.close()")
        turn_until(line, lambda: "77aa" in run.state().reason)
        [mine] = json.loads(json.dumps(alice.ask(
            "[o.uid for o in behind.ahead()]")))
        assert mine == 0  # she sees our run before hers
    turn_until(line, lambda: state(run) == "completed")
    assert alice.ask("behind.ahead()") == []


def test_who_leaves_free_devices_untouched_is_passed_over(box, alice, keys, line,  # noqa: F811
                                                          monkeypatch):
    monkeypatch.setattr(places, "PATIENCE", 1.0)
    monkeypatch.setattr(places, "_LOOK", 0.0)
    with hold(0):
        for name in ("idle", "idle_too"):
            take(alice, name, count=1)
        run = queue(devices={"ids": ["0"]})
        waits = queue(devices={"pick": 1})
        turn_until(line, lambda: "waits for runs before it" in (waits.state().reason or "")
                   or "61001" in (waits.state().reason or ""))
        # GPUs 1 and 2 are free for her, and she does not take them.
        turn_until(line, lambda: state(waits) == "completed")
        assert state(run) == "queued"
        turn_until(line, lambda: "77aa" in run.state().reason)
    turn_until(line, lambda: state(run) == "completed")


def test_a_place_that_asks_for_nothing_holds_up_nobody(box, alice, keys, line):  # noqa: F811
    """It must not end the process that starts runs either."""
    for name, count in (("none", 0), ("nothing", None)):
        take(alice, name, count=count)
    run = queue(devices={"ids": ["0"]})
    turn_until(line, lambda: not run.state().live)
    assert state(run) == "completed"


def test_our_places_outlive_the_waiter_and_follow_our_own_order(box, alice, keys, line):  # noqa: F811
    from gpu_engine.queue import change

    with hold(0):
        first, second = (queue(devices={"ids": ["0"]}) for _ in "ab")
        turn_until(line, lambda: "comes first" in (second.state().reason or ""))
        take(alice, "hers", keys=(keys[0],))
        before = alice.ask("sorted(o.id for o in hers.ahead())")
        assert len(before) == 2
        change.move(second, "first")
        turn_until(line, lambda: second.id in first.state().reason)
        assert alice.ask("sorted(o.id for o in hers.ahead())") == before
        # The waiter is killed, and another one begins.
        for held in list(line._places._held.values()):
            held.close()
        line._places._held = {}
        again = Waiter(queue_folder())
        try:
            turn_until(again, lambda: len(again._places._held) == 2)
            assert alice.ask("sorted(o.id for o in hers.ahead())") == before
            second.stop()
            turn_until(again, lambda: len(again._places._held) == 1)
            assert len(alice.ask("[o.id for o in hers.ahead()]")) == 1
            assert shared.look(box)[0].uid == 61001
        finally:
            again._places.close()
            for devices in again._devices.values():
                devices.close()
    first.stop()
