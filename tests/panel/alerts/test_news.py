"""What the panel finds out about runs while other screens are shown."""

from __future__ import annotations

import pytest

from gpu_engine.notify import watch
from gpu_engine.runs.state import AttemptRecord
from gpu_panel.alerts.news import RunsNews

from ...notify.kit import Made


@pytest.fixture
def news(monkeypatch):
    monkeypatch.setattr(watch, "_FIGURES_EVERY", 0.0)
    found = RunsNews()
    assert found.poll() == []
    return found


def told(news: RunsNews) -> list[tuple[str, str]]:
    """(run, event) of what is new, over some looks."""
    return [(one.run.id, one.happened.event) for _ in range(3) for one in news.poll()]


def test_runs_that_train_now_or_begin_later_are_told_of_once(news):
    before, seen = Made(), Made()
    before.end("failed", reason="x")
    first = RunsNews()  # opened now
    first.note([seen.run], [before.run])
    assert told(first) == []
    later = Made()
    assert told(first) == []
    seen.end("failed", reason="x")
    later.end("completed")
    assert sorted(told(first)) == sorted([(seen.run.id, "failed"), (later.run.id, "finished")])
    assert told(first) == []


def test_a_run_that_waits_is_looked_at_when_its_turn_has_come(news, monkeypatch):
    made = Made()
    made.set("queued", pid=None, attempts=())
    news.note([], [made.run])
    looked: list[str] = []
    real = watch.RunWatch.next_event
    monkeypatch.setattr(watch.RunWatch, "next_event",
                        lambda self: looked.append(self.run.id) or real(self))
    told(news)
    count = len(looked)
    told(news)
    assert len(looked) == count, "only its time stamp is read"
    made.set("running", attempts=(AttemptRecord(1, made.began),))
    told(news)
    assert len(looked) > count
    made.end("completed")
    assert told(news) == [(made.run.id, "finished")]


def test_a_resume_is_noticed_and_who_stops_a_run_is_not_told_that(news):
    made = Made()
    made.end("stopped")
    news.note([], [made.run])
    assert told(news) == []
    made.again()
    assert told(news) == []
    made.end("stopped")
    assert told(news) == []
    made.again()
    made.end("failed", reason="at once")
    assert told(news) == [(made.run.id, "failed")]
    made.remove()
    assert told(news) == []
    assert news._followed == {}
