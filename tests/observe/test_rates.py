"""The size of a script's batches is not known, so its rate is shown in steps per second."""

from __future__ import annotations

import json

from click.testing import CliRunner

from gpu_engine.cli import cli

from .kit import observe


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
