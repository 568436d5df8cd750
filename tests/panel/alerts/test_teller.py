"""Being told in the panel: with the bell, a notification and a toast, whichever screen is shown."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpu_engine.common import paths
from gpu_engine.notify import watch
from gpu_engine.runs import job, waiting
from gpu_engine.runs.state import AttemptRecord
from gpu_engine.runs.sweep import Member
from gpu_engine.runs.sweep import write as write_member
from gpu_panel.alerts import teller
from gpu_panel.alerts.news import RunsNews

from ...conftest import gpus, slots
from ...notify.kit import Made
from ..panel_kit import StillSampler, panel, says, screen_text, until


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """The test itself looks."""
    monkeypatch.setattr(teller, "_FIRST", 1e6)
    monkeypatch.setattr(watch, "_FIGURES_EVERY", 0.0)
    monkeypatch.setenv("TERM", "foot")
    monkeypatch.delenv("TMUX", raising=False)


def sent(app, monkeypatch) -> list[str]:
    """What the terminal is sent from now on."""
    found: list[str] = []
    monkeypatch.setattr(app, "terminal", SimpleNamespace(send=found.append))
    return found


async def test_a_run_that_ends_is_told_on_any_screen_and_its_own_shows_no_toast(monkeypatch):
    from gpu_panel.run.screen import RunScreen

    one, other = Made(), Made()
    async with panel(slots(1), notifications=True) as (pilot, screen):
        app = pilot.app
        told = sent(app, monkeypatch)
        await until(pilot, lambda: screen.runs.live == 2)
        await until(pilot, lambda: app.teller._lines)
        await app.teller.poll()
        await app.push_screen(RunScreen(one.run))
        one.end("completed")
        await app.teller.poll()
        assert len(told) == 1
        assert told[0].startswith(f"\a\x1b]777;notify;toy completed;toy (run {one.run.id}) on "
                                  f"{teller.socket.gethostname()} completed after 00:")
        await pilot.pause()  # a toast is a message
        assert not app._notifications, "its own screen says so"
        other.end("failed", reason="bad;\x1b]data")
        await app.teller.poll()
        assert len(told) == 2
        assert told[1].endswith(": bad,\a")
        await says(pilot, "toy failed")
        await app.teller.poll()
        assert len(told) == 2


async def test_a_device_is_waited_for_until_it_has_stayed_free(monkeypatch):
    machine = gpus(3)
    sampler = StillSampler(machine)
    idle = sampler.latest.samples

    def use(*busy: int):
        samples = tuple(replace(s, memory_used=40 << 30) if i in busy else s
                        for i, s in enumerate(idle))
        sampler.latest = replace(sampler.latest, samples=samples)
        sampler.recent = (sampler.latest,) * 3

    use(0, 2)
    async with panel(machine, sampler=sampler, sets=("devices.ids=1",), notifications=True) as (
            pilot, screen):
        app, source = pilot.app, screen.source
        told = sent(app, monkeypatch)
        await until(pilot, lambda: source.freedom and not source.freedom["0"].free)
        await pilot.press("w")
        await says(pilot, "notifies when free")
        await pilot.press("down", "w")  # GPU 1
        await says(pilot, "1 is free now")
        assert source.wanted == {"0"}
        for _ in range(5):
            await app.teller.poll()
        assert told == []
        use(2)
        for expected in (0, 0, 1, 1):
            await app.teller.poll()
            assert len(told) == expected
        assert "Device 0 is free" in told[0]
        assert source.wanted == set()
        await until(pilot, lambda: "notifies when free" not in screen_text(app))
        use(0, 1, 2)
        await until(pilot, lambda: source.freedom and not source.freedom["1"].free)
        await pilot.press("W")
        await says(pilot, "notified when any device is free")
        await app.teller.poll()
        use(0, 1)
        for _ in range(4):
            await app.teller.poll()
        assert len(told) == 2
        assert "Device 2 is free" in told[1]
        assert source.wanted == set()
        await pilot.press("home", "w", "w")
        assert source.wanted == set()


# --- What the panel finds out about runs while other screens are shown ---


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


def test_members_of_a_sweep_are_told_of_together(news):
    def members(sweep: str, count: int) -> list[Made]:
        made = [Made() for _ in range(count)]
        for index, one in enumerate(made, 1):
            write_member(one.run.path, Member(sweep, "lr", index, count, 1.0))
        return made

    def said() -> list[str]:
        return [one.sweep or one.happened.event for _ in range(3) for one in news.poll()]

    good, mixed, stopped = members("sa", 3), members("sb", 4), members("sc", 2)
    assert said() == []
    good[0].end("completed")
    assert said() == [], "one of several that has completed"
    for one in good[1:]:
        one.end("completed")
    assert said() == ["sweep sa lr has ended: 3 of 3 done"]
    mixed[0].end("failed", reason="x")
    assert said() == ["failed"]
    for one in mixed[1:3]:
        one.end("failed", reason="x")
    assert said() == ["sweep sb lr: 2 failed"]
    mixed[3].end("stopped")  # as run.stop_worse does
    assert said() == ["sweep sb lr has ended: 0 of 4 done, 3 failed, 1 stopped"]
    for one in stopped:
        one.end("stopped")
    assert said() == []
    tried = members("sd", 2)
    assert said() == []
    paths.queue_folder().mkdir()
    with waiting.sweep_lock(paths.queue_folder(), "sd").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for one in tried:
            one.end("completed")
        assert said() == [], "its process goes on: it may ask for another"
    assert said() == ["sweep sd lr has ended: 2 of 2 done"]


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
    job.write(made.run.path, job.Job(7, state="FAILED"))  # Slurm says so a moment later
    assert told(news) == []
    made.remove()
    assert told(news) == []
    assert news._followed == {}
