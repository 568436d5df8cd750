"""How often a run starts again, how long it waits, and which attempt an event counts for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_engine.events import schema
from gpu_engine.events.paths import events_path
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import append
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import Cause, Notice
from gpu_engine.supervisor import ranks, stopping
from gpu_engine.supervisor.attempt import Attempt, Verdict
from gpu_engine.supervisor.children import STOPS, Child, wait_for_signal
from gpu_engine.supervisor.ranks import RankState
from gpu_engine.supervisor.supervise import Supervisor

from ..conftest import over, wait_for
from ..faults.kit import Box
from ..plans import plan


class Scripted(Supervisor):
    """A supervisor whose attempts end as a test says, and which does not wait before the next."""

    def __init__(self, run: Run, end: Callable[[Scripted, int], str]) -> None:
        super().__init__(run, 0o22)
        self.end, self.numbers, self.pauses, self.begun_with = end, [], [], []
        self.stop_in_pause = False

    def _attempt(self, number: int) -> Verdict:
        self.numbers.append(number)
        self.begun_with.append(self.state.warnings)
        return self.end(self, number), "a reason", None  # pyright: ignore[reportReturnType]

    def _pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return not self.stop_in_pause


@pytest.fixture
def made(home: Path) -> Callable[..., Scripted]:
    def make(end: Callable[[Scripted, int], str] = lambda run, number: "failed", *,
             restarts: int, attempt: int = 1) -> Scripted:
        planned = plan(spec={"task": {"command": ["true"]}, "train": {"restarts": restarts}})
        run, lock = create_run("test", "", planned)
        os.close(lock)
        made = Scripted(run, end)
        made._begin(attempt)
        return made
    return make


@pytest.mark.parametrize(("restarts", "pauses"), [
    (0, []), (1, [1]), (2, [1, 2]), (7, [1, 2, 4, 8, 16, 30, 30])])
def test_each_pause_is_twice_the_one_before_up_to_half_a_minute(made, restarts, pauses):
    run = made(restarts=restarts)
    assert run._attempts().state == "failed"
    assert run.numbers == list(range(1, restarts + 2))
    assert run.pauses == pauses


def test_of_very_many_attempts_the_last_are_known(made):
    run = made(restarts=55)
    known = run._attempts().attempts
    assert (len(known), known[0].number, known[-1].number) == (50, 7, 56)
    assert {a.outcome for a in known} == {"failed"}


def test_a_resumed_run_has_all_its_restarts_and_short_pauses_again(made):
    run = made(restarts=2, attempt=5)
    run._attempts()
    assert (run.numbers, run.pauses) == ([5, 6, 7], [1, 2])


def test_it_ends_with_the_first_attempt_that_does_not_fail(made):
    run = made(lambda run, number: "completed" if number == 2 else "failed", restarts=5)
    assert run._attempts().state == "completed"
    assert run.numbers == [1, 2]
    assert [a.outcome for a in run.run.state().attempts][-2:] == ["failed", "completed"]


def test_a_stop_in_the_pause_is_the_end(made):
    run = made(restarts=5)
    run.stop_in_pause = True
    state = run._attempts()
    assert (run.numbers, state.state) == ([1], "stopped")
    assert state.reason == "stopped while waiting after attempt 1 failed"
    assert state.again is None


def test_a_process_that_ends_in_the_pause_is_no_stop(made):
    run, before = made(restarts=1), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGCHLD)
        assert Supervisor._pause(run, 0.01)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert not run.stop_asked


def test_a_wait_in_which_the_process_is_suspended_has_heard_of_no_stop():
    """Here by a handler that takes longer than the wait."""
    before = signal.signal(signal.SIGWINCH, lambda *_: time.sleep(0.3))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    late = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGWINCH))
    late.start()
    try:
        assert wait_for_signal(STOPS, 0.2) is None
        late.join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGWINCH, before)


def test_what_fails_while_it_is_asked_to_stop_is_not_started_again(made):
    def end(run: Scripted, number: int) -> str:
        run.stop_asked = True
        return "failed"

    run = made(end, restarts=5)
    assert run._attempts().state == "failed"
    assert (run.numbers, run.pauses) == ([1], [])


def test_an_attempt_begins_without_the_warnings_of_the_one_before(made):
    def end(run: Scripted, number: int) -> str:
        run._set_state("running", warnings=(Notice("nonfinite", "the loss is NaN"),))
        return "failed"

    run = made(end, restarts=1)
    run._attempts()
    assert run.begun_with == [(), ()]


def test_a_second_reason_to_end_gives_the_ranks_no_more_time(made):
    run, attempt = made(restarts=0), Attempt(1)
    run._limit(attempt, 5.0)
    first = attempt.deadline
    run._limit(attempt, 30.0)
    assert attempt.deadline == first
    run._limit(attempt, 1.0)
    assert attempt.deadline < first


def test_what_does_not_end_after_a_save_that_took_longer_gets_one_more_moment(made):
    run, attempt = made(restarts=0), Attempt(1)
    attempt.bad = attempt.late = True
    assert [run._let_save(attempt) for _ in range(3)] == [True, False, False]


def test_a_save_that_took_longer_before_the_stop_does_not_shorten_that(made):
    run, attempt = made(restarts=0), Attempt(1, late=True, leaving=True)
    run._handle(attempt, (signal.SIGTERM, os.getpid()))
    assert (attempt.late, attempt.leaving) == (False, False)


def test_who_asked_first_has_stopped_it(made, monkeypatch):
    run, attempt = made(restarts=0), Attempt(1)
    monkeypatch.setattr(stopping, "sender", lambda pid: f"by {pid}")
    for pid in (12, 13):
        run._handle(attempt, (signal.SIGTERM, pid))
    assert (run.stop_asked, run.stopped_by) == (True, "by 12")


@pytest.mark.parametrize(("told", "second"), [
    ((signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM), False),  # as Slurm tells, to all processes
    ((signal.SIGINT, signal.SIGTERM), False), ((signal.SIGINT, signal.SIGINT), True),
    ((signal.SIGTERM, signal.SIGINT), True),
    ((None, signal.SIGINT), False)])  # its time was up, which no person has asked for
def test_a_second_stop_is_a_persons_and_none_is_the_first_repeated(made, told, second):
    run, attempt = made(restarts=0), Attempt(1)
    attempt.stopping = stopping.Stopping(signal.SIGINT)  # as of a command that was told by now
    for number in told:
        if number is not None:
            run._handle(attempt, (number, os.getpid()))
    assert (attempt.pressed is not None, attempt.stopping.number == signal.SIGTERM) \
        == (second, second)


def child(rank: int, status: int, **more) -> Child:
    return Child((rank,), "rank", 100 + rank, 1, None, status, 9.0, **more)


def error(kind: str) -> schema.Error:
    return schema.Error(kind, "words", None, None, 4)


@pytest.mark.parametrize(("errors", "more", "outcome"), [
    ((None, None), {}, ("stopped", None)),
    (("PeerLost", "KeyboardInterrupt"), {}, ("stopped", None)),
    (("PeerLost", "ValueError"), {}, ("failed", "rank 1: ValueError: words")),
    ((None, None), {"hang": Cause("hang: rank 0 has stalled")}, ("stopped", None)),
    ((None, None), {"forced": True}, ("stopped", "the ranks did not stop in time and were killed")),
])
def test_how_an_attempt_ended_that_was_asked_to_stop(home, tmp_path, errors, more, outcome):
    attempt = Attempt(1, [child(0, 1), child(1, 1)], **more)
    for rank, kind in enumerate(errors):
        seen = attempt.events[rank] = RankState(rank, Tail(Path("none")), 1)
        for event in (started(1), *([error(kind)] if kind else [])):
            seen.fold(event)
    verdict = attempt.judge(Run(tmp_path), plan(), is_task=True, stop_asked=True, oom_kills=None)
    assert verdict[:2] == outcome
    if "hang" in more:
        assert attempt.judge(Run(tmp_path), plan(), is_task=True, stop_asked=False,
                             oom_kills=None)[0] == "failed"


@pytest.mark.parametrize(("kind", "late", "stop", "outcome"), [
    (None, 3, False, "failed"), (None, 0, False, "completed"), (None, None, True, "stopped"),
    ("KeyboardInterrupt", None, True, "stopped"), ("ValueError", None, True, "failed")])
def test_how_a_rank_below_a_command_ended(home, tmp_path, kind, late, stop, outcome):
    """Its process is not the one that was started, so its exit status is told by what reaped it."""
    (tmp_path / "ranks").mkdir()
    seen = RankState(1, Tail(Path("none")), 1)
    for event in (started(1), *([error(kind)] if kind else [])):
        seen.fold(event)
    orphans = {} if late is None else {os.getpid(): late}
    ranks.write_ends(Run(tmp_path), {1: seen}, [child(0, 0)], orphans, stop)
    assert [e.outcome for e in Tail(events_path(tmp_path, 1)).read()] == [outcome]


# --- real ranks --------------------------------------------------------------------------------

@pytest.fixture
def box(home: Path, tmp_path: Path, monkeypatch) -> Box:
    return Box(home, tmp_path, monkeypatch)


def test_ranks_are_told_that_another_has_failed(box: Box):
    run = box.go("""
start()
meet()
if rank == 1:
    os._exit(3)
while not asked:
    time.sleep(0.01)
tell("warning", message="told to end")
finish("stopped")
""")
    state = over(run)
    assert (state.state, state.cause.rank) == ("failed", 1)
    assert "told to end" in run.events(0).read_text()


def test_a_rank_that_writes_a_checkpoint_may_finish_it(box: Box):
    run = box.go("""
start()
step(1)
began = time.time()
for done in range(1, 30):
    tell("phase", phase="checkpoint", since=began, step=1, done=done, total=30)
    time.sleep(0.1)
    while not asked:
        time.sleep(0.01)
finish("stopped", 1)
""", ranks=1, run={"grace": 0.5})
    wait_for(lambda: run.events(0).exists() and '"checkpoint"' in run.events(0).read_text())
    assert run.state().live
    run.stop()
    state = over(run)
    assert state.state == "stopped"
    assert '"kind":"end"' in run.events(0).read_text()
    assert "killed" not in (state.reason or "")


# --- whose events count ------------------------------------------------------------------------

def started(attempt: int) -> schema.Start:
    return schema.Start(0, 0, 0, os.getpid(), 1, 1, attempt=attempt)


def test_what_an_earlier_attempt_wrote_does_not_count(tmp_path: Path):
    path = events_path(tmp_path, 0)
    path.parent.mkdir()
    path.touch()
    step = schema.Step(6, 0.1, 0, loss=1.0)
    for event in (step, started(1), schema.Step(7, 0.1, 0, loss=1.0), schema.End("failed", 7, 1.0)):
        append(path, event)
    seen = RankState.from_now(0, Tail(path), 2)
    seen.read()
    assert (seen.view.outcome, seen.view.at_step, seen.begun) == (None, None, False)
    append(path, started(2))
    seen.read()
    assert seen.begun

    late = RankState(0, Tail(path), 2)  # a rank that was not planned is found with its whole file
    late.read()
    assert (late.view.outcome, late.view.at_step, late.begun) == (None, None, True)


def test_a_checkpoint_that_grows_is_no_standstill():
    seen = RankState(0, Tail(Path("none")), 1)
    seen.fold(started(1))
    saving = {"phase": "checkpoint", "since": 1.0, "step": 7, "total": 100}
    seen.fold(schema.Phase(**saving, done=10))
    seen.moved = 0.0
    seen.fold(schema.Phase(**saving, done=10))
    assert seen.moved == 0.0
    seen.fold(schema.Phase(**saving, done=11))
    assert seen.moved > 0.0
    assert seen.still_saving(seen.moved + 9.0, 10.0)
    assert not seen.still_saving(seen.moved + 11.0, 10.0)
    seen.fold(schema.End("failed", 7, 1.0))  # it has given up
    assert not seen.still_saving(seen.moved + 9.0, 10.0)
