"""A run's settings in the form again, with something changed."""

from __future__ import annotations

import os

from textual.widgets import Input

from gpu_engine.launching.launcher import prepare
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run, State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.screen import RunScreen

from ....conftest import slots
from ...panel_kit import on_top, panel, screen_text, settled, until
from .test_pane import at_the_runs

DIGITS = {"name": "seven", "task": {"use": "gpu_engine.tasks.digits:Digits"},
          "devices": {"ids": ["cpu:1"]}, "parallel": {"mode": "single"},
          "batch": {"size": 48}, "train": {"steps": 9, "lr": 0.01}}


def ended() -> Run:
    made = prepare(from_dict(DIGITS), inventory=slots(2))
    run, lock = create_run("seven", to_toml(made.spec), made.plan)
    os.close(lock)
    run.write_state(State("completed", run.id, "seven", 1.0, ended=2.0))
    return run


async def test_its_settings_are_in_the_form_and_what_is_changed_is_said():
    run = ended()
    async with panel(slots(2), size=(160, 48)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await pilot.press("e")
        await until(pilot, lambda: screen.draft.run is not None)
        await settled(pilot, screen)
        assert screen.query_one("#f-batch-size", Input).value == "48"
        assert screen.devices.ticked == ("cpu:1",)
        said = screen_text(pilot.app)
        assert f"Launch ─ run {run.id}" in said
        assert f"the same as run {run.id}" in said
        assert screen.focused is screen.query_one("#f-train-lr")
        screen.query_one("#f-batch-size", Input).value = "64"
        await settled(pilot, screen)
        said = screen_text(pilot.app)
        assert f"as run {run.id}, but batch.size=64 instead of 48" in said
        assert f"run {run.id} (changed)" in said
        assert screen.review.plan.spec.train.lr == 0.01


async def test_from_the_runs_own_screen_and_what_is_unsaved_is_asked_about():
    run = ended()
    async with panel(slots(2), "ddp", size=(80, 24)) as (pilot, screen):
        screen.query_one("#f-batch-size", Input).value = "6"
        await settled(pilot, screen)
        await at_the_runs(pilot, screen, 1)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen)
                    and pilot.app.screen.store.plan is not None)
        await pilot.press("Y")
        assert pilot.app.clipboard == "\n".join(run.require_plan().lines)
        await pilot.press("e")
        await on_top(pilot, Confirm)
        assert screen.draft.value("batch.size") == 6
        await pilot.press("y")
        await until(pilot, lambda: screen.draft.run is not None)
        await settled(pilot, screen)
        assert "Task" in screen_text(pilot.app)  # the form has come forward
        assert screen.draft.value("batch.size") == 48
