"""Jobs of a real Slurm in the panel."""

from __future__ import annotations

import re

import pytest

from gpu_engine.cli.spec_options import choose_spec
from gpu_engine.slurm import submit, watch
from gpu_engine.slurm.script import job_of
from gpu_panel.common.dialogs import Confirm
from gpu_panel.run.screen import RunScreen

from ..conftest import slots
from ..panel.panel_kit import panel, screen_text, until

pytestmark = pytest.mark.root


async def test_a_job_that_waits_is_shown_and_cancelled(cluster, monkeypatch):
    monkeypatch.setattr(watch, "EVERY", 0.2)
    other = cluster.fill()
    spec = choose_spec(None, ["task.use=m:T", "devices.ids=cpu:0", "batch.size=8",
                              "parallel.mode=single"]).spec
    run, job = submit.submit(spec, job_of(spec, None, None))
    async with panel(slots(2)) as (pilot, screen):
        app = pilot.app
        await until(pilot, lambda: f"Slurm job {job.id} waits (Resources)"
                    in screen_text(app))
        assert re.search(rf"◌ +{run.id}", screen_text(app))
        screen.runs.focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await until(pilot, lambda: f"◌ Slurm job {job.id} waits (Resources)"
                    in screen_text(app))
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert "It waits in Slurm's queue. Its job is cancelled." in screen_text(app)
        await pilot.press("y")
        await until(pilot, lambda: f"■ stopped: Slurm job {job.id} was cancelled before it ran"
                    in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: re.search(rf"■ +{run.id}", screen_text(app)))
        again, number = submit.submit(spec, job_of(spec, None, None))
        await until(pilot, lambda: again.id in screen_text(app))
        cluster.ask("scancel", str(number.id))  # nothing is typed here
        await until(pilot, lambda: f"Slurm job {number.id} was cancelled before it ran"
                    in screen_text(app))
    assert again.state().exit_code == 130
    assert cluster.state(other) == "RUNNING"
