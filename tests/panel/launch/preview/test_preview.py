"""What the cursor of the list points at is shown beside it, read once, and only if it is seen."""

from __future__ import annotations

import os
import time
from unittest.mock import Mock

import pytest

from gpu_engine.common import paths
from gpu_engine.events import reader
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Cause, Run
from gpu_panel.launch.run_line import Pointed
from gpu_panel.launch.run_page import RunPage
from gpu_panel.run.screen import RunScreen
from gpu_panel.several.screen import SeveralScreen

from ....conftest import slots
from ....plans import plan
from ....sweep.made import ended, nobody_starts, submitted
from ...panel_kit import panel, shown, until
from ...run_kit import Written, flat, on_top
from ...several.test_chosen import begun, train, written
from ..runs.test_pane import at_the_runs


@pytest.fixture
def readers(monkeypatch):
    """The ids of the runs for whose ranks a reader was made."""
    made: list[str] = []

    class Counted(reader.RunReader):
        def __init__(self, run, *more):
            made.append(run.name)
            super().__init__(run, *more)

    monkeypatch.setattr("gpu_panel.run.store.RunReader", Counted)
    return made


async def says(pilot, screen, *texts: str) -> str:
    """Wait until the preview says all of it. Returns what it shows."""
    await until(pilot, lambda: all(text in seen(screen) for text in texts))
    return seen(screen)


def seen(screen) -> str:
    """What the preview shows, frame included, with single blanks."""
    preview = screen.preview
    texts = [flat(shown(widget)) for widget in preview.walk_children()
             if not widget.children and all(
                 node.display for node in widget.ancestors_with_self)]
    return flat(f"{preview.border_title} {preview.border_subtitle} " + " ".join(texts))


# --- a page for each kind of run ----------------------------------------------------------------

async def test_a_live_run():
    with begun("digits") as made:
        run = made.run
        run.log(0).write_text("one\nthe last line\n")
        async with panel(slots(2)) as (pilot, screen):
            await at_the_runs(pilot, screen, 1)
            said = await says(pilot, screen, "loss ─ 1.298 · 2 ranks agree", "the last line")
            assert f"run {run.id}" in said
            assert "DDP×2" in said
            assert "● running" in said
            assert "s stop" in said
            assert "step 100" in said
            assert screen.focused is screen.runs  # no pane of the preview takes the keys
            train(run, 2, 101, 120, 30.0)
            await says(pilot, screen, "step 120")


async def test_a_failed_run_says_why():
    run = Written(paths.runs_folder(), cpu=True, state="failed", reason="rank 1: boom", cause=Cause(
        "boom", 1, "RuntimeError", traceback="Traceback\n  in there\nRuntimeError: boom"))
    run.release()
    async with panel(slots(2), size=(120, 36)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        said = await says(pilot, screen, "in there")
        assert "rank 1 failed first: RuntimeError: boom" in said
        assert "traceback of rank 1" in said
        assert "u resume" in said
        assert "nothing yet" not in said  # it has no curves, so they take no room
        assert screen.query_one(RunPage).has_class("-failed")  # its banner may be half of the page


async def test_a_waiting_run_says_for_what(monkeypatch):
    nobody_starts(monkeypatch)
    submitted("train.lr=1e-3,3e-4")
    async with panel(slots(2)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 2)
        await pilot.press("right", "down", "down")
        said = await says(pilot, screen, "place 2 of 2 in the queue", "name=toy lr=3e-4")
        assert table.line_at_cursor.id in said
        assert "s out of the queue" in said


async def test_of_a_sweep_the_curves_of_its_runs_are_shown_and_of_a_run_its_own(monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1e-3,1e-2")
    ended(made.runs[0], [2.0, 1.0])
    ended(made.runs[1], [2.0, 0.5])
    async with panel(slots(2)) as (pilot, screen):
        await at_the_runs(pilot, screen, 2)
        await says(pilot, screen, f"sweep {made.id} toy ─ 2 of 2 done", "loss over steps",
                   "best loss by lr")
        await pilot.press("right", "down")
        await says(pilot, screen, f"run {made.runs[0].id}", "ranks ─ 1")
        await pilot.press("up")
        await says(pilot, screen, "loss over steps")
        await pilot.press("enter")
        await on_top(pilot, SeveralScreen)


# --- when it reads ------------------------------------------------------------------------------

async def test_enter_and_the_way_back_read_nothing_again(readers):
    run = written("digits")
    async with panel(slots(2)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await says(pilot, screen, "step 100")
        store = screen.query_one(RunPage).store
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        assert pilot.app.screen.store is store
        assert store.caught_up
        await pilot.press("escape")
        await on_top(pilot, screen)
        await says(pilot, screen, "step 100")
        assert readers == [run.id]


async def test_a_held_arrow_key_reads_only_where_it_ends(readers):
    for i in range(6):
        written(f"r{i}")
    async with panel(slots(2)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 6)
        first = table.line_at_cursor.id
        await says(pilot, screen, f"run {first}")
        for line in table.lines:  # faster than anybody's keys
            screen.preview.point(Pointed((line,)))
        await says(pilot, screen, f"run {table.lines[-1].id}")
        assert readers == [first, table.lines[-1].id]


async def test_a_hidden_preview_reads_nothing(readers):
    written("digits")
    async with panel(slots(2), size=(80, 24)) as (pilot, screen):
        await until(pilot, lambda: screen.runs.lines)
        await until(pilot, lambda: screen.preview._rest is None)
        assert not screen.preview.can_be_seen
        assert readers == []
        await pilot.press("escape", "4")
        await says(pilot, screen, "loss ─ 1.298", "memory")
        assert len(readers) == 1
        await pilot.press("1")
        await until(pilot, lambda: not screen.preview.can_be_seen)
        await until(pilot, lambda: screen.preview._reader.is_finished)


async def test_an_ended_run_costs_nothing_until_it_changes_but_grows_older(readers, monkeypatch):
    monkeypatch.setattr("gpu_panel.launch.preview.AGES", 0.1)
    run = written("digits")
    async with panel(slots(2)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await says(pilot, screen, "✓ completed")
        await until(pilot, lambda: screen.preview._reader.is_finished)
        (page,) = screen.preview.children
        page.paint = Mock()
        await until(pilot, lambda: page.paint.called)
        del page.paint
        train(run, 2, 101, 130, 30.0)
        state = run.state()
        os.utime(run.path)
        from dataclasses import replace

        run.write_state(replace(state, state="failed", reason="late", ended=time.time()))
        await says(pilot, screen, "✗ failed", "step 130")
        assert readers == [run.id]


# --- a new run ----------------------------------------------------------------------------------

async def test_after_a_launch_the_cursor_is_on_the_new_run(monkeypatch):
    written("before")
    locks = []

    def start(prepared) -> Run:
        run, lock = create_run("fresh", "", plan(cpu=True))
        locks.append(lock)
        return run

    monkeypatch.setattr("gpu_engine.places.verbs.start", start)
    try:
        async with panel(slots(2)) as (pilot, screen):
            await until(pilot, lambda: screen.runs.lines)
            await pilot.press("ctrl+l")
            await until(pilot, lambda: locks)
            await says(pilot, screen, "waiting for ranks 0, 1")
            assert pilot.app.screen is screen
            assert screen.focused is screen.runs
            assert screen.runs.line_at_cursor.name == "fresh"
    finally:
        for lock in locks:
            os.close(lock)
