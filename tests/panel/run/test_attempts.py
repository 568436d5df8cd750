"""Attempts: why earlier ones ended, waiting for the next one, the sheet with all of them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.runs import notes
from gpu_engine.runs.folder import AttemptRecord, Cause, State
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.state import Notice
from gpu_panel.charts.curves import CurveView
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.moments import RunClock
from gpu_panel.run.screen import RunScreen
from gpu_panel.run.sheets import AboutRun

from ..run_kit import (
    SMALL,
    T0,
    WIDE,
    Written,
    on_top,
    press,
    reached,
    said,
    says,
    screen_text,
    settled,
    shown,
    trained,
    until,
    watched,
)

FIRST = AttemptRecord(1, T0, T0 + 50, "failed", "rank 1: boom [x")


def failed_once(folder: Path, **more) -> Written:
    run = trained(folder, **more)
    run.write(1, ("error", 49, {"type": "RuntimeError", "message": "boom [x",
                                "traceback": "Traceback\nRuntimeError: boom [x"}))
    return run


async def test_waiting_for_the_next_attempt_says_why_and_how_long(tmp_path):
    run = failed_once(tmp_path)
    run.state("starting", attempts=(FIRST,), again=T0 + 54,
              reason="attempt 1 failed: rank 1: boom [x; again in 4 s")
    async with watched(run, at=51, size=SMALL) as (pilot, app):
        text = said(app)
        assert "✗ attempt 1 failed: rank 1: boom [x" in text
        assert "restarts in 3 s from the last checkpoint" in text
        app.at = 53
        await shown(pilot)
        assert "restarts in 1 s" in screen_text(app)


async def test_the_next_attempt_is_not_blamed_for_the_last(tmp_path):
    run = failed_once(tmp_path)
    second = AttemptRecord(2, T0 + 54)
    run.state("starting", attempt=2, attempts=(FIRST, second))
    async with watched(run, at=58) as (pilot, app):
        text = said(app)
        assert "waiting for ranks 0, 1 · 00:04 since it started" in text
        assert "↻ attempt 2; attempt 1 failed: rank 1: boom [x" in text
        assert "failed first" not in text
        assert "silent" not in text
        assert "step 99" not in text  # nobody knows yet from where it goes on
        for rank in (0, 1):
            run.start(rank, at=60, attempt=2)
            run.steps(rank, 80, 99, at=61)
        run.state("running", attempt=2, attempts=(FIRST, second))
        await settled(pilot, lambda s: s.view.begins and reached(1, 99)(s))
        text = screen_text(app)
        assert "↻ attempt 2; attempt 1 failed" in text
        assert "step 99 of 400" in text
        assert app.run_screen.store.view.begins == {2: 80}
        assert text.count("┊") > 5  # a mark in the loss chart where it began


async def test_who_made_room_says_for_whom_when_and_where_it_went_on(tmp_path):
    run = trained(tmp_path)
    room = AttemptRecord(1, T0, T0 + 50, "made room", "made room for run 3f2a of [ann")
    for rank in (0, 1):
        run.start(rank, at=60, attempt=2)
        run.steps(rank, 80, 99, at=61)
    # Whatever has failed before that.
    run.state("running", attempt=2, attempts=(
        replace(FIRST, number=0), room, AttemptRecord(2, T0 + 54, first_step=80)))
    async with watched(run, at=62) as (pilot, app):
        await settled(pilot, lambda s: s.view.begins and reached(1, 99)(s))
        clock = time.strftime("%H:%M", time.localtime(T0 + 50))
        assert f"↻ made room for run 3f2a of [ann at {clock}, resumed {clock} at step 80" \
            in screen_text(app)


async def test_an_attempt_on_fewer_ranks_waits_for_none_that_it_does_not_have(tmp_path):
    run = trained(tmp_path, ranks=1)  # the plan of the last attempt
    run.start(0, at=60, attempt=2)
    run.steps(0, 80, 149, at=61)
    run.state("running", attempt=2, attempts=(
        replace(FIRST, outcome="stopped"), AttemptRecord(2, T0 + 54)))
    async with watched(run, reached(0, 149), at=62) as (_pilot, app):
        text = said(app)
        assert "waiting for rank" not in text
        assert "of 2 started" not in text
        assert "step 149 of 400" in text


async def test_i_lists_attempts_warnings_and_where(tmp_path):
    run = failed_once(tmp_path, plan={"warnings": ["this run would end at logout"],
                                      "lines": ["gpu-engine run ddp"], "cwd": "/somewhere"})
    run.start(0, at=60, attempt=2)
    run.steps(0, 80, 84, at=61)
    run.write(0, ("warning", 62, {"message": "the loader is slow"}))
    run.state("running", attempt=2, attempts=(FIRST, AttemptRecord(2, T0 + 54)))
    notes.change(run.run.path, lambda now: Notes("the good one", ("lr",)))
    for size in (SMALL, WIDE):
        async with watched(run, lambda s: bool(s.view.begins), at=70, size=size) as (pilot, app):
            await pilot.press("i")
            await on_top(pilot, AboutRun)
            text = said(app)
            for part in ("00:50 failed rank 1: boom [x", "00:16 from step 80 running",
                         "! this run would end at logout", "! the loader is slow",
                         "gpu-engine run ddp", "runs in /somewhere"):
                assert part in text, part
            if size == WIDE:
                assert "run 3f2a the good one · DDP×2" in text
                await says(pilot, "name: the good one")
                assert "tags: lr" in screen_text(app)
            run.state("failed", attempt=2, ended=T0 + 65, reason="rank 0: worse", attempts=(
                FIRST, AttemptRecord(2, T0 + 54, T0 + 65, "failed", "rank 0: worse")))
            await app.run_screen.store.wait_for(lambda s: not s.state.live)
            app.screen._paint()
            await pilot.pause()
            assert "failed rank 0: worse" in said(app)  # it is updated with the run
            await pilot.press("escape")
            await pilot.pause()
            assert app.screen is app.run_screen
            run.state("running", attempt=2, attempts=(FIRST, AttemptRecord(2, T0 + 54)))


async def test_the_launchs_warnings_stand_until_they_can_be_read(tmp_path):
    run = trained(tmp_path, plan={"warnings": ["ends at logout: loginctl enable-linger"]})
    run.write(0, ("warning", 50, {"message": "the last batch is dropped"}))
    async with watched(run, at=51, size=SMALL) as (pilot, app):
        assert "! ends at logout: loginctl enable-linger" in screen_text(app)
        assert "! the last batch is dropped" in screen_text(app)
        app.at = 130
        await shown(pilot)
        text = said(app)
        assert "ends at logout" not in text
        assert "! 2 warnings (i)" in text


DAY = 86_400.0


def resumed(folder: Path) -> Written:
    """Trained for 50 s, and a day later for 10 s more."""
    run = trained(folder, cpu=True)
    for rank in (0, 1):
        run.start(rank, at=DAY, attempt=2)
        run.steps(rank, 100, 119, at=DAY + 9)
    run.state("stopped", attempt=2, started=T0 + DAY, ended=T0 + DAY + 10, attempts=(
        AttemptRecord(1, T0, T0 + 50, "stopped"),
        AttemptRecord(2, T0 + DAY, T0 + DAY + 10, "stopped")))
    return run


def test_what_was_once_said_of_an_attempts_time_stays():
    """Each rank tells that it has begun, and the state some time later."""
    clock, first = RunClock(), AttemptRecord(1, T0)
    clock.learn(State("running", "3f2a", "toy", T0, attempts=(first,)))
    assert clock.seconds(T0 + 5) == 5
    for at in (50, 52):
        clock.begun(2, T0 + at)
        assert clock.seconds(T0 + 51) == 7
    clock.learn(State("running", "3f2a", "toy", T0, attempt=2, attempts=(
        replace(first, ended=T0 + 20, outcome="failed"), AttemptRecord(2, T0 + 49))))
    assert clock.seconds(T0 + 51) == 7
    assert clock.seconds(T0 - 1) == 0
    assert clock.moment(7) == T0 + 51


async def test_the_pause_before_a_resume_is_no_time_of_the_run(tmp_path):
    run = resumed(tmp_path)
    async with watched(run, at=2 * DAY) as (_pilot, app):
        assert "■ stopped 01:00" in said(app)  # as in the list
        chart = app.run_screen.query_one("#memory", CurveView)
        one = chart.lines[-1].series
        assert (one.start, one.last) == (2, 60)  # both attempts, one after the other
        seam = next(mark for mark in chart.marks if mark.kind == "┊")
        assert seam.x == 51


# --- How the run screen shows that a run has failed, was lost, completed or stopped ---


async def test_a_rank_that_fails_is_named_before_the_run_has_ended(tmp_path):
    run = trained(tmp_path)
    run.write(1, ("error", 51, {"type": "OutOfMemoryError", "message": "CUDA out of memory",
                                "traceback": "Traceback\nOOM", "phase": "forward", "step": 99}))
    async with watched(run, lambda s: s.view.first_error() is not None, at=52, size=SMALL) as (
            pilot, app):
        assert "rank 1 failed first at step 99: OutOfMemoryError" in said(app)
        await press(pilot, "4")
        assert "log ─ traceback of rank 1" in screen_text(app)


TRACE = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/gpu_engine/worker/__main__.py", line 8, in main
    train()
  File "/home/ada/a/train.py", line 90, in <module>
    main()
  File "/home/ada/a/train.py", line 71, in main
    step(batch)
    ^^^^^^^^^^^
  File "/home/ada/a/model\x1b]0;x\x07.py", line 12, in forward
    return self.net(x)
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward_call(*args)
  File "/src/engine/gpu_engine/observe/hooks.py", line 3, in call
    return given(*args)
RuntimeError: boom"""


@pytest.mark.parametrize(("saved", "command", "cure"), [
    (True, None, "last checkpoint step 80, 66 min ago · u resumes it"),
    (False, None, "no checkpoint · e loads its settings into the form"),
    (False, ["python", "train.py"], "no checkpoint · u runs it again")])
async def test_a_failure_says_in_which_of_ones_own_lines_and_what_helps(
        tmp_path, saved, command, cure):
    run = trained(tmp_path, plan={"spec": {"task": {"command": command}}} if command else None)
    if saved:
        run.write(0, ("checkpoint", 40, {"step": 80, "path": "c", "seconds": 1.0, "bytes": 5}))
    run.state("failed", ended=T0 + 60, reason="rank 1: RuntimeError: boom",
              cause=Cause("boom", 1, "RuntimeError", TRACE))
    async with watched(run, lambda s: s.caught_up and bool(s.view.saved) is saved, at=4000) as (
            _pilot, app):
        lines = [line.strip() for line in screen_text(app).splitlines()]
        at = lines.index("✗ rank 1 failed first: RuntimeError: boom")
        assert lines[at + 1:at + 4] == ["train.py:71 in main: step(batch)",
                                        "model.py:12 in forward: return self.net(x)",
                                        f"last step 99 · {cure}"]


async def test_lost_says_what_is_so(tmp_path):
    run = trained(tmp_path)
    run.write(0, ("checkpoint", 40, {"step": 80, "path": "checkpoints/step-00000080",
                                     "seconds": 1.0, "bytes": 5}))
    run.release()
    async with watched(run, lambda s: s.caught_up and s.view.saved is not None, at=4000) as (
            _pilot, app):
        text = said(app)
        assert "? lost: its supervisor died" in text
        assert "last step 99 · last checkpoint step 80, 66 min ago" in text
        assert "ended in forward" in text


TOLD = (Notice("nonfinite", "the loss of rank 1 was not finite at step 7", rank=1, step=7),
        Notice("not-reduced", "2 ranks train, each by itself", ("init_process_group()", "DDP(m)")))


@pytest.mark.parametrize("state", ["completed", "stopped", "running"])
async def test_what_is_told_stands_in_amber_with_its_cure(tmp_path, state):
    run = trained(tmp_path)
    run.state(state, ended=None if state == "running" else T0 + 75, warnings=TOLD)
    if state != "running":
        run.release()
    async with watched(run, at=51) as (pilot, app):
        banner = app.run_screen.query_one("#banner")
        assert banner.has_class("-warning")
        lines = [line.strip() for line in screen_text(app).splitlines()]
        at = lines.index("! the loss of rank 1 was not finite at step 7")
        assert lines[at + 1:at + 4] == ["! 2 ranks train, each by itself", "init_process_group()",
                                        "DDP(m)"]
        await press(pilot, "i")
        assert "DDP(m)" in screen_text(app)


# --- stop --------------------------------------------------------------------------------------

async def test_stop_asks_and_then_offers_to_end_now(tmp_path, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr("gpu_engine.runs.folder.Run.stop",
                        lambda _, *, now=False: asked.append(now))
    run = trained(tmp_path)
    async with watched(run, size=SMALL) as (pilot, app):
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert "finish their step and save" in said(app)
        await pilot.press("escape")
        await on_top(pilot, RunScreen)
        assert asked == []
        await pilot.press("s")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await on_top(pilot, RunScreen)
        await until(pilot, lambda: asked == [False])  # by another thread
        run.state("stopping")
        await settled(pilot, lambda s: s.state.state == "stopping")
        assert "◐ stopping" in screen_text(app)
        run.state("stopping", reason="rank 0 is still writing a checkpoint; gpu-engine stop --now")
        await settled(pilot, lambda s: s.state.reason is not None)
        assert "rank 0 is still writing a checkpoint; s again ends the run now" \
            in said(app)
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert "End now" in screen_text(app)
        await pilot.press("y")
        await on_top(pilot, RunScreen)
        await until(pilot, lambda: asked == [False, True])
