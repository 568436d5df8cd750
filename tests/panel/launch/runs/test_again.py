"""A run's settings in the form again, with something changed."""

from __future__ import annotations

import csv
import json
import os

from textual.widgets import Button, Input

from gpu_engine.places.verbs import prepare
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run, State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_panel.common.command_dialog import CommandDialog
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.screen import RunScreen

from ....conftest import slots
from ...panel_kit import (
    fields_of,
    on_top,
    panel,
    said_below,
    says,
    screen_text,
    settled,
    until,
)
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


# --- Exporting from the list and from a run's screen, by the real command line ---


async def test_the_figures_are_written_where_the_dialog_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    run = ended()
    steps = [{"t": 5.0, "kind": "step", "step": 2, "n": 2, "epoch": 0, "loss": 3.0,
              "losses": [4.0, 2.0], "lr": 0.1, "samples_per_s": 1.0, "data_wait": 0.0,
              "skipped": 0}]
    run.events(0).write_text("".join(json.dumps(line) + "\n" for line in steps))
    async with panel(slots(2), size=(80, 24)) as (pilot, screen):
        await at_the_runs(pilot, screen, 1)
        await pilot.press("E")
        await says(pilot, "TensorBoard")
        await pilot.press(*"as csv")
        await until(pilot, lambda: "TensorBoard" not in screen_text(pilot.app))
        await pilot.press("enter")
        await on_top(pilot, CommandDialog)
        asked = fields_of(pilot.app)
        assert {name: field.value for name, field in asked.items()} == {"--out": f"{run.id}.csv"}
        asked["--out"].value = "/proc/none/figures.csv"
        await pilot.click(next(b for b in pilot.app.screen.query(Button)
                               if str(b.label) == "Write"))
        await said_below(pilot, asked["--out"])  # the dialog stays, with what was typed
        await says(pilot, "/proc/none")
        asked["--out"].value = "~/its.csv"
        await pilot.press("enter")
        written = tmp_path / "me/its.csv"
        await on_top(pilot, screen)
        await until(pilot, written.exists)
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], float(row["train/loss"])) for row in rows] == [("1", 4.0), ("2", 2.0)]
