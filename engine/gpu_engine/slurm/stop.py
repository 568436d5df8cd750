"""Stopping a run that is a job of Slurm, so that it does not go back to the queue."""

from __future__ import annotations

import contextlib

from gpu_engine.common.errors import UserError
from gpu_engine.runs import job as jobs
from gpu_engine.runs.folder import Run
from gpu_engine.runs.job import Job
from gpu_engine.slurm import commands, watch
from gpu_engine.slurm.commands import SlurmError


def stop(run: Run, *, now: bool = False) -> None:
    """Cancel the run's job if it waits; else ask its ranks to save and end. `now`: have Slurm kill
    them. Raises UserError if it has ended, or with Slurm's words if that can't be done."""
    watch.refresh(at_once=True)
    state, job = run.state(), jobs.read(run.path)
    if not state.live or job is None:
        raise UserError(f"run {run.id} is not running: it is {state.state}")
    if job.doubt is not None:
        raise UserError(f"run {run.id} is Slurm job {job.id}, and Slurm can't be asked: "
                        f"{job.doubt}. On a machine of the cluster, scancel {job.id} cancels it")
    fresh = not jobs.asked_to_stop(run.path)
    try:
        jobs.ask_to_stop(run.path)
        _end(run, job, now)
    except (OSError, SlurmError) as err:
        if fresh:
            with contextlib.suppress(OSError):
                (run.path / jobs.STOP).unlink(missing_ok=True)
        words = err.strerror if isinstance(err, OSError) else err
        raise UserError(f"run {run.id} can't be stopped: {words}") from None
    watch.refresh(at_once=True)


def _end(run: Run, job: Job, now: bool) -> None:
    """Raises SlurmError."""
    if job.waits:
        commands.cancel(job.id, job.cluster, "--state=PENDING")
        watch.refresh(at_once=True)
        job = jobs.read(run.path) or job
        if job.waits or job.over:
            return
    # Not even where the nodes don't see the file yet that ask_to_stop has written, and not if
    # Slurm itself would begin it again, as after a node's failure.
    with contextlib.suppress(SlurmError):
        commands.no_requeue(job.id, job.cluster)
    if now:
        # The step, by its number, is killed at once; a job that is killed gets SIGTERM before,
        # and its ranks would save.
        with contextlib.suppress(SlurmError):
            commands.cancel(job.id, job.cluster, "--signal=KILL", step=0)
        commands.cancel(job.id, job.cluster)
    elif run.state().pid is None:  # no rank that could save
        commands.cancel(job.id, job.cluster)
    else:
        commands.cancel(job.id, job.cluster, "--signal=USR1")
