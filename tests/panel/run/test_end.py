"""How the run screen shows that a run has failed, was lost, completed or stopped."""

from __future__ import annotations

import asyncio

import pytest

from gpu_engine.runs.folder import Cause
from gpu_engine.runs.state import Notice
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.screen import RunScreen

from ..run_kit import (
    SMALL,
    T0,
    flat,
    on_top,
    screen_text,
    settled,
    shown,
    trained,
    watched,
)


async def test_failure_leads_with_the_rank_that_failed_first(tmp_path):
    run = trained(tmp_path)
    trace = "Traceback (most recent call last):\n  File \"t.py\", line 3\nRuntimeError: boom [x\n"
    run.write(1, ("error", 51, {"type": "RuntimeError", "message": "boom [x", "traceback": trace,
                                "phase": "forward", "step": 99}))
    run.write(0, ("error", 52, {"type": "DistBackendError", "message": "peer gone",
                                "traceback": "later", "phase": "backward", "step": 99}))
    run.state("failed", ended=T0 + 53, exit_code=1, reason="rank 1 ended with exit status 1",
              cause=Cause("boom [x", 1, "RuntimeError", trace))
    run.release()
    async with watched(run) as (pilot, app):
        text = flat(screen_text(app))
        assert "✗ rank 1 failed first: RuntimeError: boom [x" in text
        assert "rank 1 ended with exit status 1" in text
        assert "log ─ traceback of rank 1" in text
        assert 'File "t.py", line 3' in text
        assert "✗ RuntimeError" in text
        assert "✗ failed 00:53" in text
        await pilot.press("r")
        await shown(pilot)
        assert "rank 1 says 49" in screen_text(app)


async def test_a_rank_that_fails_is_named_before_the_run_has_ended(tmp_path):
    run = trained(tmp_path)
    run.write(1, ("error", 51, {"type": "OutOfMemoryError", "message": "CUDA out of memory",
                                "traceback": "Traceback\nOOM", "phase": "forward", "step": 99}))
    async with watched(run, lambda s: s.view.first_error() is not None, at=52, size=SMALL) as (
            pilot, app):
        assert "rank 1 failed first at step 99: OutOfMemoryError" in flat(screen_text(app))
        await pilot.press("4")
        await shown(pilot)
        assert "log ─ traceback of rank 1" in screen_text(app)


async def test_lost_says_what_is_so(tmp_path):
    run = trained(tmp_path)
    run.write(0, ("checkpoint", 40, {"step": 80, "path": "checkpoints/step-00000080",
                                     "seconds": 1.0, "bytes": 5}))
    run.release()
    async with watched(run, lambda s: s.caught_up and s.view.saved is not None, at=4000) as (
            _pilot, app):
        text = flat(screen_text(app))
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
        await pilot.press("i")
        await shown(pilot)
        assert "DDP(m)" in screen_text(app)


async def test_completed_says_totals(tmp_path):
    run = trained(tmp_path)
    for rank in (0, 1):
        run.write(rank, ("end", 51, {"outcome": "completed", "steps": 100, "seconds": 50.0}))
    run.state("completed", ended=T0 + 75, exit_code=0)
    run.release()
    async with watched(run) as (pilot, app):
        text = flat(screen_text(app))
        assert "✓ completed 99 steps in 01:15 · loss 2.440" in text
        assert "✓ completed 01:15" in text
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)  # nothing to stop


# --- stop --------------------------------------------------------------------------------------

async def test_stop_asks_and_then_offers_to_end_now(tmp_path, monkeypatch):
    asked: list[bool] = []
    called, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_: object, *, now=False):
        asked.append(now)
        if now:
            loop.call_soon_threadsafe(called.set)

    monkeypatch.setattr("gpu_engine.runs.folder.Run.stop", stop)
    run = trained(tmp_path)
    async with watched(run, size=SMALL) as (pilot, app):
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert "finish their step and save" in flat(screen_text(app))
        await pilot.press("escape")
        await on_top(pilot, RunScreen)
        assert asked == []
        await pilot.press("s")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await on_top(pilot, RunScreen)
        run.state("stopping")
        await settled(pilot, lambda s: s.state.state == "stopping")
        assert asked == [False]
        assert "◐ stopping" in screen_text(app)
        run.state("stopping", reason="rank 0 is still writing a checkpoint; gpu-engine stop --now")
        await settled(pilot, lambda s: s.state.reason is not None)
        assert "rank 0 is still writing a checkpoint; s again ends the run now" \
            in flat(screen_text(app))
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert "End now" in screen_text(app)
        await pilot.press("y")
        await on_top(pilot, RunScreen)
        await called.wait()
        assert asked == [False, True]
