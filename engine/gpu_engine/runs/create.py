"""Creating a run folder, which readers see only once it is complete, and reopening one for another
attempt."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import files, procs
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import open_inside, write_inside, write_json_inside
from gpu_engine.common.paths import parts_folder, private_folder, runs_folder
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import attempts, trust, waiting
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs.folder import Run, require_folder
from gpu_engine.runs.state import FINAL, AttemptRecord, State

_ENDING = 10.0
"""Seconds that a supervisor may take to end after it has written how the run ended."""
_NEW = ".new-"
_STALE = 60.0
"""Seconds after which an unfinished folder may be removed. Its maker may be alive on another
machine that shares the disk, and whose pids can't be checked here."""


def create_run(name: str, spec_toml: str, plan: LaunchPlan, attempt: int = 1, *,
               settled: bool = True, path: Path | None = None) -> tuple[Run, int]:
    """Create a run folder in the state queued, for `attempt` as the first. Returns the run and the
    descriptor that holds its lock; the supervisor inherits it, so that the lock is never free in
    between.

    settled: whether it has reached the disk on return. False for a run that begins at once: its
    ranks don't wait for the disk, and `settle` does so beside them.
    path: the run folder; None: a new one among the others.

    Raises UserError if the folder can't be written, or something is there.
    """
    cwd = working_folder()
    folder = path.parent if path else runs_folder() if plan.part_of is None else parts_folder()
    if path is None or folder == runs_folder():
        require_folder(folder)
    if path is None:
        _sweep(folder)
    # As short as a person likes to type, unless nearly all of the short ones are taken.
    for size in (2, 2, 2, 3, 4, 8):
        run = Run(path or folder / os.urandom(size).hex())
        if path is None and any((one / run.id).exists()
                                for one in (runs_folder(), parts_folder())):
            continue
        try:
            private_folder(folder)
            fd = _make(run.path, name, spec_toml, replace(plan, id=run.id, cwd=cwd), attempt,
                       settled)
            trust.note_started(run.path)
        except OSError as err:
            taken = err.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
            if taken and path is None:
                continue
            why = "something that is not a run is there already" if taken else err.strerror
            raise UserError(f"{path or folder}: can't create a run folder there: {why}") from None
        return run, fd
    raise UserError(f"{folder} is full")


def discard(run: Run) -> None:
    """Remove a run folder whose run never began. Raises nothing."""
    shutil.rmtree(run.path, ignore_errors=True)
    with contextlib.suppress(OSError):
        trust.forget_started(run.path)


def settle(run: Run) -> None:
    """Have what `create_run` has written reach the disk. Raises nothing: the run is on its way."""
    with contextlib.suppress(OSError):
        for name in ("spec.toml", "plan.json", "state.json", "."):
            files.settle(run.path / name)


def reopen_run(run: Run, spec_toml: str, plan: LaunchPlan, job: int | None = None, *,
               attempt: int | None = None) -> int:
    """Prepare an ended run for another attempt, `attempt` or the next, with a new spec and plan.
    Returns the descriptor that holds its lock. Raises UserError if the run is live or its folder
    can't be written.

    job: the Slurm job whose ranks begin the attempt. Its submission has counted the attempt if no
    rank of it has begun yet. None: not in a job, and the run is a job's no longer."""
    before = run.state()
    trust.require_ours(run.path)
    known = slurm_job.read(run.path)
    counted = known is not None and known.id == job \
        and before.attempt not in [a.number for a in before.attempts]
    with telling(f"{run.path}: can't be written"):
        fd = _lock(run)
        if known is not None and known.id != job:
            slurm_job.forget(run.path)
        waiting.leave(run.path)  # it was killed when it had ended, and before it left the line
        changed = before.changed if counted else attempts.save(run, before.attempt, spec_toml)
        write_inside(run.path, "spec.toml", spec_toml)
        write_json_inside(run.path, "plan.json", replace(
            plan, id=run.id, cwd=plan.cwd or run.cwd()).to_dict())
        run.write_state(State("queued", run.id, before.name, before.created,
                              attempt=attempt or before.attempt + (0 if counted else 1),
                              boot=procs.boot_id(),
                              attempts=_closed(before), changed=changed, rungs=before.rungs))
        trust.note_started(run.path)
    return fd


def _closed(before: State) -> tuple[AttemptRecord, ...]:
    """The attempts so far. The last attempt gets its outcome here if nothing was left to record
    it: the supervisor was killed, or Slurm has ended the job."""
    if not before.attempts or before.attempts[-1].outcome is not None:
        return before.attempts
    *earlier, last = before.attempts
    if before.state not in FINAL:  # a job that Slurm has begun once more
        return (*earlier, replace(last, outcome="lost"))
    return (*earlier, replace(last, outcome=before.state, reason=before.reason))


def _make(path: Path, name: str, spec_toml: str, plan: LaunchPlan, attempt: int,
          settled: bool) -> int:
    """Create the folder under a temporary name and rename it when it is complete, so that a reader
    never sees a run without a state. Returns the descriptor that holds its lock.

    Raises OSError (ENOTEMPTY if there is such a run already), and then leaves nothing behind.
    """
    new = path.with_name(f"{_NEW}{path.name}-{os.getpid()}")
    fd = None
    try:
        new.mkdir(mode=0o700)
        (new / "ranks").mkdir(mode=0o700)
        fd = lock_of(new)
        fcntl.flock(fd, fcntl.LOCK_EX)
        write_inside(new, "spec.toml", spec_toml, settled=settled)
        write_json_inside(new, "plan.json", plan.to_dict(), settled=settled)
        state = State("queued", path.name, name, time.time(), attempt=attempt,
                      boot=procs.boot_id())
        write_json_inside(new, "state.json", state.to_dict(), settled=settled)
        new.rename(path)
    except OSError:
        if fd is not None:
            os.close(fd)
        shutil.rmtree(new, ignore_errors=True)
        raise
    return fd


def _sweep(folder: Path) -> None:
    """Remove the unfinished folders of launchers that were killed."""
    for path in folder.glob(f"{_NEW}*"):
        pid = path.name.rpartition("-")[2]
        with contextlib.suppress(OSError):
            if not (pid.isdigit() and procs.start_ticks(int(pid))) \
                    and time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)


def lock_of(folder: Path, name: str = "lock") -> int:
    """Open a lock file, without locking it. Returns a descriptor from 3 up, as a child's 0 to 2
    are replaced: without this, a program started with stdin closed would hand over /dev/null.
    Raises OSError."""
    low = open_inside(folder, name, os.O_RDWR | os.O_CREAT)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(low)


def _lock(run: Run) -> int:
    """Take the lock of an ended run, whose supervisor may hold it for a moment longer. Returns its
    descriptor. Raises UserError if the run is live, or its supervisor does not end; OSError."""
    end = time.monotonic() + _ENDING
    while True:
        fd = lock_of(run.path)
        if files.take_lock(fd):
            return fd
        os.close(fd)
        if run.state().live or time.monotonic() > end:
            raise UserError(f"run {run.id} is running")
        time.sleep(0.02)


def working_folder() -> str:
    """The folder in which the ranks will run, the current one. Raises UserError if it was
    deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError as err:
        raise UserError(f"the working directory is gone: {err.strerror}; change to another, as "
                        "the ranks run in it") from None
