"""The state of a run, from what was recorded of it and what its place has said: one rule for this
machine, hosts and Slurm. Pure.

A run is *lost* only where its place was asked: here the lock says that nobody runs it, and Slurm
that it knows no such job. Hosts are asked by a process here. While that is gone, as it was killed
or the machine switched off, they go on, and nothing is heard of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_engine.runs.job import BY_SLURM, GONE, Job
from gpu_engine.runs.state import EXIT_CODES, FINAL, State, StateName

UNHEARD = "no process here follows it; its hosts go on, and are asked by the next command " \
    "that names it"
"""What is said of a run on hosts that nobody here holds together."""


def judge(recorded: State, *, held: bool = False, job: Job | None = None, stop: bool = False,
          waits: State | None = None, there: Sequence[int] | None = None) -> State:
    """The state of a run whose supervisor wrote `recorded` last. held: whether one holds its lock.
    job: what Slurm said of it; stop: whether a person has asked that to end. waits: its state as
    one that waits for its turn. there: its ranks, if they are on hosts that can be asked; None:
    here."""
    if job is not None:  # its lock may be held on another machine
        return _of_job(recorded, job, stop)
    if waits is not None or held or not recorded.live:
        return waits or recorded
    if there is not None:
        return replace(recorded, reason=UNHEARD, unheard=tuple(there))
    return replace(recorded, state="lost", exit_code=EXIT_CODES["lost"])


def _of_job(recorded: State, job: Job, stop: bool) -> State:
    """`recorded` is as the submission wrote it, if none of its ranks has begun. The state has a
    `pid` only while there are ranks."""
    last = recorded.attempts[-1] if recorded.attempts else None
    reported = last is not None and last.number == recorded.attempt \
        and last.requeued is not None and last.requeued >= job.restarts
    if reported and recorded.state in FINAL:
        if recorded.state != "stopped":
            return recorded
        if job.over:  # by now Slurm has said why
            told = (recorded.reason or "").endswith(BY_SLURM) and not stop
            # Without the words: the end of a log tells of the save, and not why.
            return replace(recorded, reason=replace(job, words=None).sentence()) \
                if told and job.state not in (GONE, "COMPLETED") else recorded
        then = "ends" if stop else "goes back to the queue"
        return _live(recorded, "stopping", f"the ranks have ended; Slurm job {job.id} {then}")
    if job.over:
        return _over(recorded, job, stop)
    if stop:
        reason = f"Slurm job {job.id} was asked to end"
        return replace(recorded, state="stopping", reason=reason) if reported \
            else _live(recorded, "stopping", reason)
    if reported:
        return replace(recorded, reason=job.sentence()) if job.doubt else recorded
    return _live(recorded, "queued" if job.waits else "starting", job.sentence())


def _live(recorded: State, name: StateName, reason: str) -> State:
    return replace(recorded, state=name, reason=reason, ended=None, exit_code=None, cause=None,
                   pid=None, ticks=None)


def _over(recorded: State, job: Job, stop: bool) -> State:
    name: StateName = "stopped" if stop or job.state == "CANCELLED" \
        else "lost" if job.state == GONE else "failed"
    reason = job.sentence()
    if stop and job.nodes:
        reason = f"Slurm job {job.id} was ended before its ranks could save"
    return replace(recorded, state=name, reason=reason, ended=job.ended,
                   exit_code=EXIT_CODES[name], cause=None)
