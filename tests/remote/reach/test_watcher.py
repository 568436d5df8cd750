"""Other machines' devices as they come: over real agents, without one, and when the way breaks."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.devices.discover import discover
from gpu_engine.remote.reach import protocol, watcher
from gpu_engine.remote.reach.call import Shell
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.watcher import HostSeen, Watcher

from ...conftest import wait_for

BOX = Host("box", via=("env", "A=b"), python=sys.executable)


@pytest.fixture
def watching(monkeypatch):
    """A watcher that tries again soon."""
    monkeypatch.setattr(watcher, "_PAUSES", (0.1,))
    found = Watcher(0.25)
    yield found
    found.close()


def process(watching: Watcher) -> int:
    """Of the way to the box."""
    call = watching._watches["box"].call
    return call._shell.process.pid


def of(watching: Watcher, name: str) -> HostSeen:
    return next(s for s in watching.seen if s.host.name == name)


def test_an_agent_s_devices_come_and_come_again(watching, home):
    watching.watch(BOX)
    watching.watch(BOX)
    assert [s.state for s in watching.seen] == ["asking"]
    wait_for(lambda: len(of(watching, "box").recent) >= 3)
    seen = of(watching, "box")
    assert seen.state == "seen"
    assert seen.inventory == discover()
    assert seen.snapshot == seen.recent[-1]
    assert set(seen.freedom) == {d.id for d in discover().devices}
    assert seen.age() < 60


def test_a_way_that_breaks_is_away_with_its_reason_and_found_again(watching, home, monkeypatch):
    watching.watch(BOX)
    wait_for(lambda: of(watching, "box").snapshot)
    heard = of(watching, "box").heard
    told: list[HostSeen] = []
    watch = watching._watches["box"]
    update = watch._update
    monkeypatch.setattr(watch, "_update", lambda **new: (update(**new), told.append(watch.seen)))
    os.kill(process(watching), signal.SIGKILL)
    wait_for(lambda: any(s.state == "seen" and s.heard > heard for s in told
                         if "away" in [t.state for t in told]))
    gone = next(s for s in told if s.state == "away")
    assert gone.reason
    assert gone.snapshot is not None, "what was seen last stays"


def test_another_protocol_is_looked_at_and_told_apart(watching, home, monkeypatch):
    monkeypatch.setattr(protocol, "VERSION", protocol.VERSION + 1)
    watching.watch(Host("old", via=("env", "PATH=/usr/bin:/bin"), python=sys.executable))
    wait_for(lambda: of(watching, "old").reason)
    assert "can't talk to" in of(watching, "old").reason


def test_closed_it_leaves_nothing(watching, home):
    watching.watch(BOX)
    wait_for(lambda: of(watching, "box").snapshot)
    pid = process(watching)
    watching.close()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_closed_while_nothing_answers_it_leaves_nothing_either(watching, home, tmp_path,
                                                               monkeypatch):
    """Though what `via` names hears neither the end of its input nor a signal, and this program
    may end before its threads give it up."""
    monkeypatch.setattr(Shell, "close", lambda self: None)
    pids = tmp_path / "pids"
    watching.watch(Host("deaf", via=("sh", "-c", f"trap '' HUP INT TERM; sleep 1000 & "
                                                 f"echo $$ $! > {pids}; wait; wait")))
    wait_for(lambda: pids.exists() and pids.read_text().split())
    watching.close()
    wait_for(lambda: not any(procs.start_ticks(int(pid)) for pid in pids.read_text().split()))
