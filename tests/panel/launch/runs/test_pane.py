"""Actions on the runs in the list: resume one, delete one, delete all but the newest."""

from __future__ import annotations

import os

from gpu_engine.places import verbs as launch
from gpu_engine.runs.create import create_run, reopen_run
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch import run_feed as runs_feed
from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.resume import ResumeDialog
from gpu_panel.run.screen import RunScreen

from ....conftest import slots
from ....odd_runs import ended
from ....plans import plan
from ...panel_kit import on_top, panel, says, screen_text, until

PLAN = plan()


async def at_the_runs(pilot, screen, count: int) -> RunsPane:
    table = screen.query_one(RunsPane)
    await until(pilot, lambda: table.lines is not None and len(table.lines) == count)
    await pilot.press("escape", "4")
    await until(pilot, lambda: table.has_focus)
    return table


async def test_only_what_can_be_done_is_offered():
    stopped, (live, lock) = ended("stopped", 5), create_run("long", "", PLAN)
    try:
        async with panel(slots(1), size=(80, 24)) as (pilot, screen):
            table = await at_the_runs(pilot, screen, 2)
            assert table.line_at_cursor.id == live.id
            await says(pilot, "s stop")
            said = screen_text(pilot.app)
            assert "u resume" not in said
            assert len(screen.query_one(KeyBar).shown) <= 8
            await pilot.press("down")
            await until(pilot, lambda: "u resume" in screen_text(pilot.app)
                        and "s stop" not in screen_text(pilot.app))
            assert table.line_at_cursor.id == stopped.id
            # There is no other pane to go to, so the list keeps the focus.
            await pilot.press("escape", "up")
            await until(pilot, lambda: table.line_at_cursor.id == live.id)
            assert table.has_focus
    finally:
        os.close(lock)


async def test_resume_from_the_list(monkeypatch):
    run = ended("stopped")
    asked: list[object] = []
    monkeypatch.setattr(launch, "resume",
                        lambda run, sets=(), **more: asked.append((run.id, sets)))
    async with panel(slots(1)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await pilot.press("u")
        await on_top(pilot, ResumeDialog)
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        assert asked == [(run.id, [])]
        assert pilot.app.screen.run_folder.id == run.id


async def test_every_run_can_be_reached(monkeypatch):
    monkeypatch.setattr(runs_feed, "NEWEST", 5)
    monkeypatch.setattr(runs_feed, "SPELL", -1.0)
    made = [ended("stopped", n) for n in range(60)]
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 60)  # their figures come afterwards
        assert "60 earlier" in str(table.border_title)
        assert "reading 60" in str(table.border_title)
        monkeypatch.setattr(runs_feed, "SPELL", 9.0)
        await until(pilot, lambda: "reading" not in str(table.border_title))
        await pilot.press("home", "pagedown")
        seen = table.key_at_cursor
        await says(pilot, seen)
        assert 5 < [r.id for r in made].index(seen) < 12  # one page further
        await pilot.press("pageup")
        assert table.key_at_cursor == made[0].id
        await pilot.press("end")
        assert table.key_at_cursor == made[-1].id
        await until(pilot, lambda: made[-1].id in screen_text(pilot.app))
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        assert pilot.app.screen.run_folder.id == made[-1].id


def test_an_older_run_that_was_resumed_is_live_at_once(monkeypatch):
    monkeypatch.setattr(runs_feed, "NEWEST", 2)
    old = [ended("stopped", n) for n in range(4)][-1]
    feed = runs_feed.RunsFeed()
    assert [line.live for line in feed.refresh()[0]] == [False] * 4
    lock = reopen_run(old, "", PLAN)
    try:
        feed.relist()
        lines, _ = feed.refresh()
        assert [line.live for line in lines] == [True, False, False, False]
        assert lines[0].id == old.id
    finally:
        os.close(lock)
