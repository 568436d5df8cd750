"""The run folder of ranks without a supervisor: a new one, or their old one when they are started
once more. Standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.runs.job import Job
from gpu_engine.runs.state import AttemptRecord

_LOCK = 30.0
"""Seconds to wait for the processes of the previous attempt to end."""


def named(folder: str) -> Path:
    """The run folder that `--folder` means: a path, or the name of a run. Raises UserError."""
    if "/" in folder:
        return expanded(folder).absolute()
    if not re.fullmatch(r"[\w-][\w.-]{0,127}", folder):
        raise UserError(f"--folder {folder!r}: expected a name of letters, digits, - _ and ., or a "
                        "path with /")
    return paths.runs_folder() / folder


def batch_job(env: Mapping[str, str]) -> Job | None:
    """The Slurm job, if gpu-panel's batch script has started these ranks. Within an allocation of
    a person's own, which may hold other things, there is none: it would not be the run's to end."""
    number, count = env.get("GPU_PANEL_SLURM_JOB", ""), env.get("SLURM_RESTART_COUNT", "")
    if not number.isdigit() or number != env.get("SLURM_JOB_ID"):
        return None
    return Job(int(number), state="RUNNING", restarts=int(count) if count.isdigit() else 0,
               nodes=env.get("SLURM_JOB_NODELIST"))


def open_run(path: Path | None, name: str, spec_toml: str, plan: LaunchPlan, job: Job | None,
             ) -> tuple[runs.Run, int, int, tuple[AttemptRecord, ...]]:
    """Open the run in the folder `path`, or make one if there is none; None: in a new folder. job:
    the Slurm job that the run is.

    Returns (run, the descriptor that holds its lock, number of this attempt, earlier attempts).
    Raises UserError if the folder can't be made or another process holds it.
    """
    number, before = 1, ()
    if path is None or not (path / "plan.json").exists():
        run, lock = create_run(name, spec_toml, plan, path=path)
    else:
        run, end = runs.Run(path), time.monotonic() + _LOCK
        while run.supervised() and time.monotonic() < end:
            time.sleep(0.2)  # a killed rank takes a moment to release the lock
        lock = reopen_run(run, spec_toml, plan, job.id if job is not None else None)
        state = run.state()
        number, before = state.attempt, state.attempts
    if job is not None and slurm_job.read(run.path) is None:
        try:
            slurm_job.write(run.path, job)
        except OSError as err:
            raise UserError(f"{run.path}: can't be written: {err.strerror}") from None
    return run, lock, number, before
