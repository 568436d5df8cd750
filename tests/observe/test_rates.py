"""The size of a script's batches is not known, so its rate is shown in steps per second."""

from __future__ import annotations

import json

from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common import units
from gpu_engine.events.view import RunView

from ..event_lines import from_dict
from .kit import observe


def test_rates_are_in_steps_as_examples_are_unknown():
    assert units.pace(None, 21.34) == "21.3 steps/s"
    assert units.pace(1234.0, 21.34) == "1.2k examples/s"
    assert units.pace(None, None) == units.UNKNOWN
    view = RunView()
    for i in range(4):
        view.fold(0, from_dict({"t": 100.0 + i, "kind": "step", "step": 10 * i, "n": 10,
                                "loss": 1.0}))
    assert view.progress().steps_per_s == 10.0
    assert RunView().progress().steps_per_s is None


def test_a_threads_training_is_seen_with_its_rate_and_its_end(home):
    seen = observe("thread.py")
    seen.same_as_without()
    assert seen.losses() == seen.printed()
    assert seen.state["state"] == "completed"  # a failed thread leaves the exit status 0
    shown = CliRunner().invoke(cli, ["show", seen.run.id]).output
    assert "steps/s  " in shown
    assert " ms a step" in shown
    assert "ValueError: enough of it" in shown
    assert json.loads(CliRunner().invoke(cli, ["show", "--json", seen.run.id]).output)[
        "progress"]["steps_per_s"] > 0
