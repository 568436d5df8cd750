"""Exporting from the list and from a run's screen, by the real command line."""

import csv
import json

from textual.widgets import Input

from gpu_panel.common.dialogs import AskLine, Message

from ....conftest import slots
from ...panel_kit import on_top, panel, says, screen_text, until
from .test_again import ended
from .test_pane import at_the_runs


async def test_the_figures_are_written_where_the_dialog_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
        await on_top(pilot, AskLine)
        field = pilot.app.screen.query_one(Input)
        assert field.value == f"{run.id}.csv"
        field.value = "/proc/none/figures.csv"
        await pilot.press("enter")
        await on_top(pilot, Message)
        assert "/proc/none" in screen_text(pilot.app)
        await pilot.press("escape", "E")
        await says(pilot, "TensorBoard")
        await pilot.press(*"as csv")
        await until(pilot, lambda: "TensorBoard" not in screen_text(pilot.app))
        await pilot.press("enter")
        await on_top(pilot, AskLine)
        await pilot.press("enter")
        written = tmp_path / f"{run.id}.csv"
        await until(pilot, written.exists)
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], float(row["train/loss"])) for row in rows] == [("1", 4.0), ("2", 2.0)]
