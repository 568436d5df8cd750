"""Noting in the run folders what Slurm says of their jobs, and stopping these.

Whoever looks at runs calls `refresh`: it asks for all of them together, and among all programs
that look, at most once in a few seconds. It blocks until Slurm answers, so a screen calls it in a
thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import end_inside
from gpu_engine.common.paths import runs_folder
from gpu_engine.events.paths import inside, log_path
from gpu_engine.runs import job as jobs
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.job import Job
from gpu_engine.slurm import commands
from gpu_engine.slurm.commands import SlurmError

EVERY = 3.0
"""Seconds between two questions."""
_AFTER_FAILURE = 30.0
"""Seconds until the next one if Slurm could not be asked."""
_STAMP = ".slurm-asked"
_END = 4096
"""Bytes at the end of a job's output that are read."""
_NOISE = re.compile(r"srun: (launch/slurm|Job step|error: \S+: tasks? |got SIG|forc)"
                    r"|slurmstepd-?\S*: error: \*|\d{4}-\d\d-\d\d [\d:,]+ INFO", re.IGNORECASE)
"""Lines in which Slurm says only that it ends what has failed, and those of our own that tell what
goes on."""


def refresh(*, at_once: bool = False) -> None:
    """Ask Slurm about all jobs that were submitted from here and have not ended, unless that was
    done a moment ago or is being done. `at_once`: however short a time ago."""
    stamp = runs_folder() / _STAMP
    with contextlib.suppress(OSError):
        if not at_once and _lately(os.stat(stamp), EVERY):  # noqa: PTH116
            return
    found = [(run, jobs.read(run.path)) for run in each_run()
             if os.path.exists(run.path / jobs.FILE)  # noqa: PTH110
             and trust.started_here(run.path)]
    runs = [(run, job) for run, job in found if job is not None and not job.over]
    if not runs:
        return
    try:
        fd = os.open(stamp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    with contextlib.closing(os.fdopen(fd, "rb")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if at_once else fcntl.LOCK_NB))
        except OSError:
            return
        known = any(job.doubt for _, job in runs)
        if not at_once and _lately(os.fstat(fd), _AFTER_FAILURE if known else EVERY):
            return
        _query(runs)
        with contextlib.suppress(OSError):
            os.pwrite(fd, b"+", 0)


def _lately(stamp: os.stat_result, seconds: float) -> bool:
    # A time ahead of the clock, which was set back, says nothing.
    return stamp.st_size > 0 and 0 <= time.time() - stamp.st_mtime < seconds


def _query(runs: Sequence[tuple[Run, Job]]) -> None:
    """Ask about these jobs, and note the answers."""
    try:
        seen = commands.jobs()
    except SlurmError as err:
        for run, job in runs:
            _note(run, job, replace(job, doubt=str(err), since=job.since or time.time()))
        return
    why = None
    # Of one that was cancelled only the accounting knows who did that.
    cancelled = {job.id for job in seen.values() if job.state == "CANCELLED"}
    if absent := sorted(j.id for _, j in runs if j.id not in seen or j.id in cancelled):
        try:
            seen |= commands.finished(absent)
        except SlurmError as err:
            why = str(err)
    for run, job in runs:
        now = _now(job, seen.get(job.id), why)
        if now.over and now.state not in ("CANCELLED", jobs.GONE):
            words = _last_line(run.path / jobs.OUTPUT) or _last_line(log_path(run.path, 0))
            now = replace(now, words=words or now.words)
        _note(run, job, now)
        if now.waits and jobs.asked_to_stop(run.path):  # it went back before it could know
            with contextlib.suppress(SlurmError):
                commands.cancel(job.id)


def _now(job: Job, seen: Job | None, why: str | None) -> Job:
    """The job, as Slurm describes it now. `why`: why the accounting could not be asked about those
    that squeue no longer lists."""
    job = replace(job, doubt=None, since=None)
    if seen is None:
        return replace(job, state=jobs.GONE, words=why)
    # The accounting says nothing of how often it was requeued.
    return replace(seen, restarts=max(job.restarts, seen.restarts), words=job.words,
                   request=job.request) if seen.state else job


def _note(run: Run, before: Job, now: Job) -> None:
    recorded = jobs.read(run.path)
    if now != before and recorded is not None and recorded.id == now.id:
        with contextlib.suppress(OSError):
            jobs.write(run.path, now)


def _last_line(path: Path) -> str | None:
    """The last line of a file in a run folder that is not Slurm's noise."""
    lines = end_inside(*inside(path), _END).decode(errors="replace").splitlines()
    told = (clean(line).strip() for line in reversed(lines))
    return next((line for line in told if line and not _NOISE.match(line)), None)


def stop(run: Run, *, now: bool = False) -> None:
    """Cancel the run's job if it waits; else ask its ranks to save and end, and see that it does
    not go back to the queue. `now`: have Slurm kill them. Raises UserError if it has ended, or with
    Slurm's words if that can't be done."""
    refresh(at_once=True)
    state, job = run.state(), jobs.read(run.path)
    if not state.live or job is None:
        raise UserError(f"run {run.id} is not running: it is {state.state}")
    if job.doubt is not None:
        raise UserError(f"run {run.id} is Slurm job {job.id}, and Slurm can't be asked: "
                        f"{job.doubt}. On a machine of the cluster, scancel {job.id} cancels it")
    fresh = not jobs.asked_to_stop(run.path)
    try:
        jobs.ask_to_stop(run.path)
        _end(run, job, now, again=not fresh)
    except (OSError, SlurmError) as err:
        if fresh:
            with contextlib.suppress(OSError):
                (run.path / jobs.STOP).unlink(missing_ok=True)
        words = err.strerror if isinstance(err, OSError) else err
        raise UserError(f"run {run.id} can't be stopped: {words}") from None
    refresh(at_once=True)


def _end(run: Run, job: Job, now: bool, *, again: bool) -> None:
    """Raises SlurmError."""
    if job.waits:
        commands.cancel(job.id, "--state=PENDING")
        refresh(at_once=True)
        job = jobs.read(run.path) or job
        if job.waits or job.over:
            return
    # Not even where the nodes don't see the file yet that ask_to_stop has written, and not if
    # Slurm itself would begin it again, as after a node's failure.
    with contextlib.suppress(SlurmError):
        commands.call(["scontrol", "update", f"JobId={job.id}", "Requeue=0"])
    if now:
        # The step, by its number, is killed at once; a job that is killed gets SIGTERM before,
        # and its ranks would save.
        with contextlib.suppress(SlurmError):
            commands.cancel(f"{job.id}.0", "--signal=KILL")
        commands.cancel(job.id)
    elif run.state().pid is None:  # no rank that could save
        commands.cancel(job.id)
    else:
        # As Slurm's warning, which may reach a supervisor by itself and through its guard.
        commands.cancel(job.id, f"--signal={'INT' if again else 'USR1'}")
