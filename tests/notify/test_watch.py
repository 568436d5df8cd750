"""What is found out about a run by looking at it, each thing once."""

from __future__ import annotations

import time

import pytest

from gpu_engine.notify import messages, watch
from gpu_engine.notify.watch import RunWatch
from gpu_engine.runs.state import AttemptRecord, Cause

from .. import event_lines
from .kit import Made


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(watch, "_FIGURES_EVERY", 0.0)
    return Made()


def looks(seen: RunWatch, times=4):
    return [found for _ in range(times) if (found := seen.next_event()) is not None]


def steps(made: Made, rank: int, *, ago: float, phase="backward"):
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
    for rank in (0, 1):  # since it was looked at
        made.event("step", rank, step=8, n=1, epoch=0, loss=4.0, losses=[4.0])
    made.end(state, cause=Cause("bad", 1) if state == "failed" else None)
    assert not seen.is_over()
    [told] = looks(seen)
    assert (told.event, told.state.state) == (event, state)
    assert (told.progress.step, told.progress.loss) == (8, 4.0)
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


def test_that_it_made_room_is_told_the_first_time_only(made):
    seen, rooms = RunWatch(made.run), [
        AttemptRecord(n, made.began, made.began + 5, "made room", f"made room for run {n}")
        for n in (1, 2)]
    made.set("queued", attempts=tuple(rooms[:1]))
    [told] = looks(seen)
    assert (told.event, told.why) == ("made_room", "made room for run 1")
    made.set("queued", attempts=tuple(rooms))
    assert looks(seen) == []
    made.end("completed")
    assert [one.event for one in looks(seen)] == ["finished"]
    assert "toy waits again" in messages.of_run(
        "made_room", told.state, told.progress, name="toy", machine="m", why=told.why,
        now=made.began).title


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


def test_nobody_is_called_away_while_a_rank_works(made):
    """An RL loop, say, or a validation on one rank for which the other waits."""
    made.set("running", attempts=(AttemptRecord(1, made.began - 1000),))
    for rank in (0, 1):
        steps(made, rank, ago=watch.STANDING + 60)
        made.event("stands", rank, step=7, phase="backward", since=made.began - 350,
                   works=rank == 0, place="train.py:3 in main", stack=["train.py:3 in main"])
    assert looks(RunWatch(made.run)) == []
    made.event("stands", 0, step=7, phase="backward", since=made.began - 350, works=False,
               place="train.py:3 in main", stack=["train.py:3 in main"])
    [told] = looks(RunWatch(made.run))
    assert told.why.endswith(": ranks 0, 1 stand still at train.py:3 in main")


def test_a_standstill_that_comes_soon_after_another_is_told_later_if_it_goes_on(made, monkeypatch):
    made.set("running", attempts=(AttemptRecord(1, made.began - 1000),))
    seen, why = RunWatch(made.run), ["it stands"]
    monkeypatch.setattr(watch.Figures, "standing", lambda figures, state: why[0])
    assert [told.event for told in looks(seen)] == ["stalled"]
    why[0] = None
    assert looks(seen) == []
    why[0] = "it stands again"
    assert looks(seen) == [], "two within ten minutes are one message"
    monkeypatch.setattr(watch, "_APART", 0.0)
    assert [told.why for told in looks(seen)] == ["it stands again"]
    assert looks(seen) == []


def test_a_rank_that_comes_later_is_looked_at_too(made, monkeypatch):
    monkeypatch.setattr(watch, "_RANKS_EVERY", 0.0)
    made.set("running", attempts=(AttemptRecord(1, made.began - 1000),))
    steps(made, 0, ago=watch.STANDING - 60, phase="eval")
    seen = RunWatch(made.run)
    assert looks(seen) == []
    steps(made, 1, ago=watch.STANDING + 60)
    [told] = looks(seen)
    assert "rank 1 has stalled" in told.why


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
