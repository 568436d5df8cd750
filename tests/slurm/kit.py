"""Runs as jobs of a real Slurm, as a person has them."""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs.folder import Run
from gpu_engine.runs.job import Job
from gpu_engine.slurm import watch

from ..conftest import wait_for

STOOD_IN = ("--", sys.executable, str(Path(__file__).with_name("stand_in.py")))
"""The words for a run that trains nothing."""


def say(*args: str, code: int = 0) -> str:
    """The output of gpu-engine."""
    done = CliRunner().invoke(cli, list(args))
    assert done.exit_code == code, done.output
    return done.output


def job_of(run: Run) -> Job:
    job = jobs.read(run.path)
    assert job is not None
    return job


def seen(run: Run) -> runs.State:
    """The state, Slurm asked just now."""
    watch.refresh(at_once=True)
    return run.state()


def ended(run: Run) -> runs.State:
    """The state, once it has ended."""
    return wait_for(lambda: not (now := seen(run)).live and now)
