"""What is found out about a run by looking at it, each thing once."""

from __future__ import annotations

import time

import pytest

from gpu_engine.diagnose import verdicts
from gpu_engine.diagnose.verdicts import Verdict
from gpu_engine.events.paths import DEVICES
from gpu_engine.notify import messages, watch
from gpu_engine.notify.watch import RunWatch
from gpu_engine.runs.state import AttemptRecord, Cause

from .. import event_lines
from .kit import Made


@pytest.fixture
def made(home, monkeypatch):
    monkeypatch.setattr(watch, "_FIGURES_EVERY", 0.0)
    return Made()


def looks(seen: RunWatch, times: int = 4):
    return [found for _ in range(times) if (found := seen.next_event()) is not None]


def steps(made: Made, rank: int, *, ago: float, phase: str = "backward") -> None:
    """Three steps, the last of them so many seconds ago, and signs of life since."""
    made.event("start", rank, ago=ago + 3, rank=rank, pid=1, world_size=2, attempt=1)
    for step in (5, 6, 7):
        made.event("step", rank, ago=ago + 7 - step, step=step, n=1, epoch=0, loss=step / 2,
                   losses=[step / 2])
    made.event("phase", rank, ago=0.1, phase=phase, since=time.time() - ago, step=7)


@pytest.mark.parametrize(("state", "event"), [("completed", "finished"), ("failed", "failed"),
                                              ("stopped", "stopped")])
def test_an_end_is_told_once_with_the_last_figures(made, state, event):
    steps(made, 0, ago=1)
    steps(made, 1, ago=1)
    seen = RunWatch(made.run)
    assert looks(seen) == []
    assert not seen.is_over()
    made.end(state, cause=Cause("bad", 1) if state == "failed" else None)
    assert not seen.is_over()
    [told] = looks(seen)
    assert (told.event, told.state.state) == (event, state)
    assert (told.progress.step, told.progress.loss) == (7, 3.5)
    assert seen.is_over()


def test_a_lost_run_is_told_when_it_is_still_lost_at_the_next_look(made):
    seen = RunWatch(made.run)
    made.let_go()
    assert seen.next_event() is None, "its process may be started again at once"
    made.again()
    assert seen.next_event() is None
    made.let_go()
    assert seen.next_event() is None, "and again"
    assert seen.next_event().event == "lost"
    assert seen.is_over()


def test_a_resume_begins_anew_and_what_was_told_before_is_known_by_its_key(made):
    seen = RunWatch(made.run)
    made.end("failed", reason="x")
    [first] = looks(seen)
    made.again()
    assert not seen.is_over()
    assert looks(seen) == []
    made.end("failed", reason="x")
    [second] = looks(seen)
    assert second.key != first.key
    assert looks(RunWatch(made.run, {first.key})) != []
    after = RunWatch(made.run, {first.key, second.key})
    assert (looks(after), after.is_over()) == ([], True)


def test_ranks_that_stand_still_are_told_once_and_again_only_when_they_have_moved(
        made, monkeypatch):
    monkeypatch.setattr(watch, "_APART", 0.0)
    evaluates = Made()
    for one in (evaluates, made):
        one.set("running", attempts=(AttemptRecord(1, made.began - 1000),))
    for rank, phase in enumerate(("backward", "data")):
        steps(evaluates, rank, ago=watch.STANDING - 100, phase="eval")
        steps(made, rank, ago=watch.STANDING + 60, phase=phase)
    assert looks(RunWatch(evaluates.run)) == [], "an evaluation may take as long"
    seen = RunWatch(made.run)
    assert seen.next_event() is None, "after a machine's sleep everything seems to stand"
    told = seen.next_event()
    assert told.event == "stalled"
    assert "rank 1 has stalled in data for 06:" in told.why
    assert "rank 0 in backward" in told.why
    assert looks(seen) == []
    for rank in (0, 1):
        made.event("step", rank, step=8, n=1, epoch=0, loss=1.0, losses=[1.0])
        made.event("phase", rank, phase="forward", since=time.time(), step=8)
    assert looks(seen) == []
    made.set("stopping")
    assert looks(seen) == []


def test_ranks_of_a_host_that_can_not_be_reached_are_not_said_to_stand_still(made):
    why = "gpu2 has not been reached since 12:00:03: no answer"
    made.set("running", attempts=(AttemptRecord(1, made.began - 1000),), unheard=(1,), reason=why)
    steps(made, 0, ago=1)
    steps(made, 1, ago=watch.STANDING + 60)
    [told] = looks(RunWatch(made.run))
    assert (told.event, told.why) == ("stalled", why)
    said = messages.of_run(told.event, told.state, told.progress, name="digits", machine="here",
                           why=told.why, now=time.time())
    assert said.title == "digits sends no heartbeat"
    assert "stands still" not in said.text
    assert said.text.endswith(f": {why}")


def slow(made: Made, rank: int, data: float) -> None:
    """Ten seconds of steps, of which this share waits for data."""
    for at in range(1, 11):
        made.event("step_time", rank, ago=11 - at, step=at * 10, n=10, seconds=1.0, median=0.1,
                   data=data, forward=0.1, backward=0.1, optimizer=0.1)


@pytest.mark.parametrize(("data", "told"), [(0.5, ["slow"]), (0.1, [])])
def test_why_it_is_slow_is_told_once_and_when_it_is_certain(made, monkeypatch, data, told):
    for rank in (0, 1):
        steps(made, rank, ago=1)
        slow(made, rank, data)
    seen = RunWatch(made.run)
    assert looks(seen) == [], "it is not looked for in the first minute"
    monkeypatch.setattr(watch, "_SLOW_EVERY", 0.0)
    seen = RunWatch(made.run)
    assert [seen.next_event() for _ in range(2)] == [None, None]
    found = looks(seen)
    assert [one.event for one in found] == told
    for one in found:
        assert one.why.startswith("input-bound: waiting for data takes 50% ")
        assert looks(RunWatch(made.run, {one.key})) == []
        said = messages.of_run(one.event, one.state, one.progress, name="digits", machine="here",
                               why=one.why, now=time.time())
        assert said.title == "digits is slow"
        assert said.text.endswith(one.why)


def test_what_costs_little_is_not_told_and_memory_that_runs_out_is(made, monkeypatch):
    monkeypatch.setattr(watch, "_SLOW_EVERY", 0.0)
    steps(made, 0, ago=1)
    steps(made, 1, ago=1)
    for at in range(1, 11):
        for rank in (0, 1):
            made.event("step_time", rank, ago=11 - at, step=at * 10, n=10, seconds=1.0, median=0.1,
                       data=0.0, forward=0.1, backward=0.1, optimizer=0.1, save=0.08)
    seen = RunWatch(made.run)
    assert looks(seen, 6) == []
    made.event("memory", 1, rss=1, gpu_allocated=[97], gpu_peak=[98], gpu_total=[100])
    [told] = looks(seen, 6)
    said = messages.of_run(told.event, told.state, told.progress, name="digits", machine="here",
                           why=told.why, now=time.time())
    assert said.title == "digits is short of memory"
    assert looks(seen, 6) == []


@pytest.fixture
def judged(made, monkeypatch):
    """The verdicts that each next look finds; the last ones go on."""
    each: list[list[Verdict]] = [[]]
    monkeypatch.setattr(watch, "_SLOW_EVERY", 0.0)
    monkeypatch.setattr(verdicts, "of",
                        lambda *about: each.pop(0) if len(each) > 1 else each[0])
    return each


A, B = Verdict("input-bound", "data", cost=0.5), Verdict("another-process", "others", cost=0.4)


def test_a_reason_that_comes_and_goes_is_not_told(made, judged):
    judged[:] = [[A], [A], [], [A], [A], []]
    seen = RunWatch(made.run)
    assert looks(seen, 9) == []
    judged[:] = [[A], [A], [A], []]
    assert len(looks(seen, 9)) == 1


def test_each_of_two_reasons_is_told_once(made, judged):
    judged[:] = [[A, B]]
    told = [one.why for one in looks(RunWatch(made.run), 9)]
    assert told == ["input-bound: data", "another-process: others"]


def test_a_run_that_is_being_stopped_is_not_said_to_be_slow(made, judged):
    judged[:] = [[A]]
    made.set("stopping")
    assert looks(RunWatch(made.run), 9) == []


def test_who_else_is_on_its_devices_is_told(made, monkeypatch):
    monkeypatch.setattr(watch, "_SLOW_EVERY", 0.0)
    event_lines.append(made.run.path / DEVICES, *(
        event_lines.line("devices", {"ids": ["0"], "others": [0.5]}) for _ in range(20)))
    [told] = looks(RunWatch(made.run), 6)
    assert told.why.startswith("another-process: processes that are not this run's take 50% ")


def test_two_standstills_within_minutes_are_told_as_one(made, monkeypatch):
    why: list[str | None] = ["stuck"]
    monkeypatch.setattr(watch.Figures, "standing", lambda self, state: why[0])
    seen = RunWatch(made.run)
    assert len(looks(seen)) == 1
    why[0] = None
    assert looks(seen) == []
    why[0] = "stuck"
    assert looks(seen) == []


def test_what_an_earlier_attempt_wrote_is_no_standstill_of_this_one(made):
    """Its ranks may import torch for minutes before they write anything."""
    steps(made, 0, ago=600)
    seen = RunWatch(made.run)
    assert looks(seen) == []


def test_of_a_long_file_only_the_end_is_read_whenever_it_grew(made):
    line = event_lines.line("step", {"step": 1, "n": 1, "epoch": 0, "loss": 1.0, "losses": [1.0],
                                     "lr": 0.1})
    with made.run.events(0).open("ab") as file:
        file.write(line * (40 * watch._NEAR // len(line)))
    seen = RunWatch(made.run)
    seen.next_event()
    tail = seen._figures._tails[0]
    assert tail.offset == tail.size()
    for count in (40, 80):
        with made.run.events(0).open("ab") as file:
            file.write(line * (count * watch._NEAR // len(line)))
        made.event("step", 0, step=count, n=1, epoch=0, loss=2.0, losses=[2.0])
        seen.next_event()
        assert tail.offset == tail.size()
        assert seen._figures.view.progress().step == count


def test_a_run_that_was_removed_is_over_and_nothing_is_told(made):
    seen = RunWatch(made.run)
    seen.next_event()
    made.let_go()
    made.remove()
    assert (looks(seen), seen.is_over()) == ([], True)
