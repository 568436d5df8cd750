"""The run that a command means, and what is asked of it, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.common.errors import UserError
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job, trust

_FETCHED = 5.0
"""Seconds that are waited for what a host has of a run that has ended without it."""


def find(name: str) -> runs.Run:
    """`runs.folder.find`; where the run is on hosts and nobody here holds it together any more, it
    is taken up again, and if it has ended, what a host that was away then has of it is fetched;
    where it is a job of Slurm, Slurm is asked about it. Raises UserError."""
    from gpu_engine.remote.run import parts

    run = runs.find(name)
    if parts.spans(run.path) and trust.started_here(run.path):
        from gpu_engine.launching.reattach import reattach

        reattach(run, wait=_FETCHED)
    ask_slurm(run)
    return run


def find_each(names: Sequence[str]) -> list[runs.Run]:
    """`find` of each of these names. Raises UserError where two mean the same run."""
    found = [find(name) for name in names]
    ids = [run.id for run in found]
    if len(set(ids)) < len(ids):
        raise UserError(f"{', '.join(names)}: these name {', '.join(ids)}; name each run once")
    return found


def ask_all() -> None:
    """`find` of all runs, for lists: none is called lost that goes on elsewhere."""
    from gpu_engine.launching.reattach import reattach_all
    from gpu_engine.slurm import watch

    reattach_all()
    watch.refresh()


def ask_slurm(run: runs.Run) -> None:
    """Have the folder of a run that is a job of Slurm say what Slurm says, if that was not done in
    the last few seconds. Call it before `Run.state`."""
    known = job.read(run.path)
    if known is not None and not known.over and trust.started_here(run.path):
        from gpu_engine.slurm import watch

        watch.refresh()


def stop(run: runs.Run, *, now: bool = False) -> None:
    """`Run.stop`, or for a job of Slurm the same through Slurm: the job does not go back to the
    queue. Raises UserError."""
    if job.read(run.path) is None:
        from gpu_engine.remote.run import queries

        if run.state().live or not queries.stop_left(run, now=now):
            run.stop(now=now)
        return
    trust.require_started(run.path)
    from gpu_engine.slurm import watch

    watch.stop(run, now=now)
