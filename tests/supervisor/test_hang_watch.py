"""Whether a rank hangs or only its record does: judged by real processes seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gpu_engine.common import procs
from gpu_engine.events.reader import Tail
from gpu_engine.runs import folder as runs
from gpu_engine.supervisor import hang_watch
from gpu_engine.supervisor.attempt import Attempt
from gpu_engine.supervisor.ranks import RankState

from .. import event_lines
from ..conftest import patience, wait_for
from ..event_lines import from_dict

WORKS = "while True: sum(range(100_000)), time.sleep(0.01)"
"""A fraction of the time, as a rank does whose device computes."""
SLEEPS = "time.sleep(600)"


@pytest.fixture(autouse=True)
def _no_stacks(monkeypatch):
    monkeypatch.setattr(hang_watch.stacks, "send", lambda *about: False)


@pytest.fixture
def process(request):
    code = f"import time; print('up', flush=True)\n{request.param}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # its own start is work too, and so is the way to its sleep
        wait_for(lambda: procs.read_stat(child.pid).state == "S")
        yield child
        child.kill()


def rank(child, tmp_path, *, still, silent) -> RankState:
    now = time.monotonic()
    seen = RankState(0, Tail(tmp_path / "none"), 1)
    for event in ({"kind": "start", "rank": 0, "pid": child.pid}, {"kind": "step", "step": 7},
                  {"kind": "phase", "phase": "backward", "step": 7}):
        seen.fold(from_dict(event | {"t": 1.0}))
    seen.moved, seen.heard = now - still, now - silent
    return seen


def judged(seen, tmp_path, *, hangs=True):
    """The words of the verdict, once there is one; where none is to come, None after four seconds.
    """
    run = runs.Run(tmp_path)
    watch = hang_watch.Watch(run, 3.0)
    end = time.monotonic() + (patience() if hangs else 4)
    while time.monotonic() < end and not watch.text:
        watch.judge({0: seen})
        time.sleep(0.05)
    return watch.text or None


@pytest.mark.parametrize("process", [WORKS, SLEEPS], indirect=True, ids=["works", "sleeps"])
def test_a_rank_that_is_heard_and_stands_hangs_whatever_its_process_does(process, tmp_path):
    seen = rank(process, tmp_path, still=10, silent=0.5)
    assert "rank 0 has stalled in backward" in judged(seen, tmp_path)


@pytest.mark.parametrize(("process", "hangs"), [(WORKS, False), (SLEEPS, True)],
                         indirect=["process"], ids=["works", "sleeps"])
def test_a_silent_rank_hangs_only_where_its_process_does_nothing(process, hangs, tmp_path):
    seen = rank(process, tmp_path, still=10, silent=10)
    assert (judged(seen, tmp_path, hangs=hangs) is not None) == hangs


@pytest.mark.parametrize(("process", "does"), [(WORKS, "works"), (SLEEPS, "sleeps")],
                         indirect=["process"], ids=["works", "sleeps"])
def test_what_a_silent_rank_does_is_written_for_it_once_and_is_no_sign_of_life(
        process, does, tmp_path, monkeypatch):
    monkeypatch.setattr(hang_watch, "_WATCHED", 0.3)
    (tmp_path / "ranks").mkdir()
    run = runs.Run(tmp_path)
    run.events(0).touch()
    seen = rank(process, tmp_path, still=10, silent=10)
    seen.tail = Tail(run.events(0))
    watch = hang_watch.Watch(run, 0.0)

    def look(seen):
        watch.say_what_silent_ranks_do({0: seen})
        seen.read()
        return event_lines.read(run.events(0))

    seen.view.started = (procs.start_ticks(process.pid) or 0) + 1  # of another process
    look(seen)
    assert not watch._quiet
    seen.view.started = procs.start_ticks(process.pid)
    heard = seen.heard
    wait_for(lambda: look(seen))
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: len(look(seen)) == 2)
    said = [line["process"] for line in look(seen)]
    assert said == [does, "suspended"]
    assert (seen.view.quiet, seen.heard) == ("suspended", heard)
    seen.heard = time.monotonic()
    look(seen)
    assert not watch._quiet


def test_a_rank_that_stood_for_less_than_the_time_given_does_not_hang(tmp_path):
    seen = RankState(0, Tail(tmp_path / "none"), 1)
    for event in ({"kind": "start", "rank": 0}, {"kind": "step", "step": 7}):
        seen.fold(from_dict(event | {"t": 1.0}))
    now = time.monotonic()
    for still, hangs in ((2.0, False), (4.0, True)):
        seen.moved, seen.heard = now - still, now
        watch = hang_watch.Watch(runs.Run(tmp_path), 3.0)
        watch.judge({0: seen})
        assert watch.waiting == hangs


def test_a_rank_hangs_only_in_training(tmp_path):
    """Before the first step a download may take hours; after the end there is nothing to wait for.
    """
    events = [{"kind": "phase", "phase": "data", "step": 0}, {"kind": "step", "step": 7},
              {"kind": "end", "outcome": "completed", "steps": 7, "seconds": 1.0}]
    seen = RankState(0, Tail(tmp_path / "none"), 1)
    seen.fold(from_dict({"t": 1.0, "kind": "start", "rank": 0}))
    for event, hangs in zip(events, (False, True, False), strict=True):
        seen.fold(from_dict(event | {"t": 1.0}))
        seen.moved, seen.heard = time.monotonic() - 10, time.monotonic()
        watch = hang_watch.Watch(runs.Run(tmp_path), 3.0)
        watch.judge({0: seen})
        assert watch.waiting == hangs


def test_the_stacks_of_all_ranks_are_waited_for(tmp_path, monkeypatch):
    printed = {0: "where rank 0 is"}
    monkeypatch.setattr(hang_watch.stacks, "send", lambda *about: True)
    monkeypatch.setattr(hang_watch.stacks, "printed", lambda log, at: printed.get(int(log.stem)))
    ranks = {}
    for rank in (0, 1):
        ranks[rank] = seen = RankState(rank, Tail(tmp_path / "none"), 1)
        seen.fold(from_dict({"t": 1.0, "kind": "start", "rank": rank, "pid": os.getpid()}))
        seen.fold(from_dict({"t": 1.0, "kind": "step", "step": 8 - rank}))
        seen.moved, seen.heard = time.monotonic() - 10, time.monotonic()
    watch = hang_watch.Watch(runs.Run(tmp_path), 3.0)
    assert watch.judge(ranks) is None
    assert watch.judge(ranks) is None
    printed[1] = "where rank 1 is"
    cause = watch.judge(ranks)
    assert (cause.rank, cause.traceback) == (1, "where rank 1 is")  # which is furthest behind


def test_a_run_that_is_stopped_while_it_hangs_was_stopped(tmp_path):
    hung = Attempt(1, hang=runs.Cause("hang: rank 1 stands still", 1, "Hang"))
    run, plan = runs.Run(tmp_path), None  # of a plan nothing is looked at without a process
    assert hung.judge(run, plan, is_task=True, stop_asked=True, oom_kills=None) == (
        "stopped", None, None)
    assert hung.judge(run, plan, is_task=True, stop_asked=False, oom_kills=None)[0] \
        == "failed"
