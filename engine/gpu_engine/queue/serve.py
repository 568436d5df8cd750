"""The waiting runs of this user: listing them, moving one, and seeing to it that each has a
supervisor, also after a reboot or if its own was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import json_inside, locked, read_inside, take_lock
from gpu_engine.launching import logind
from gpu_engine.launching.launcher import supervise
from gpu_engine.queue import turns
from gpu_engine.queue.turns import When
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run, State, runs_folder
from gpu_engine.runs.waiting import Entry


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run in the line."""

    run: Run
    entry: Entry
    state: State


def line() -> list[Waiting]:
    """All waiting runs of this user, in their order. Raises UserError if the folders can't be
    read."""
    folder = runs_folder()  # raises if nobody can look there, also where no entry is read
    entries = waiting.line(paths.queue_folder()).items()
    found = [Waiting(run := Run(folder / name), entry, run.state()) for name, entry in entries]
    return [one for one in found if one.state.state == "queued"]


def early(entry: Entry | When, runs: Path) -> tuple[str, bool] | None:
    """`turns.early`, with the state of the run that this one of the folder `runs` follows."""
    first = None
    if entry.after is not None:
        ahead = Run(runs / entry.after)
        first = ahead.state().state if ahead.path.is_dir() else None
    return turns.early(entry, first, time.time())


def prioritise(run: Run, priority: int) -> None:
    """Give a waiting run another priority. Raises UserError if it does not wait."""
    _place(run, priority=priority)


def move(run: Run, to: str) -> None:
    """Move a waiting run: "first", "last". It gets the priority of its new place where its own
    would keep it from there. Raises UserError if it does not wait."""
    _place(run)
    if others := [w.entry for w in line() if w.run.id != run.id]:
        with telling(f"run {run.id} can't be moved"):
            behind = waiting.next_number(paths.queue_folder())
        entry = waiting.read(run.path)
        own = 0 if entry is None else entry.priority
        if to == "first":
            _place(run, priority=max(own, others[0].priority), number=others[0].number - 1)
        else:
            _place(run, priority=min(own, others[-1].priority), number=behind)


def put_ahead(runs: Sequence[Run], sweep: str) -> None:
    """Put members of a sweep that wait ahead of those of it that have not begun yet. Raises
    UserError."""
    new = [w.entry for w in line() if w.entry.sweep == sweep and not w.state.rungs]
    for run in runs if new else ():
        _place(run, priority=new[0].priority, number=new[0].number - 0.5)


def _place(run: Run, **place: float) -> None:
    """Change a run's place in the line."""
    trust.require_started(run.path)
    entry, state = waiting.read(run.path), run.state().state
    if entry is None or state != "queued":
        raise UserError(f"run {run.id} does not wait: it is {state}")
    if place:
        with telling(f"run {run.id} can't be moved"):
            waiting.write(run.path, replace(entry, **place))
            waiting.enter(run.path)


# --- their supervisors ---------------------------------------------------------------------------

def alone(folder: Path | None = None) -> dict[Run, Entry]:
    """The runs that wait on this machine and that nothing starts, in their order. `folder`: the
    queue's; several machines may share it. Costs next to nothing if nothing waits."""
    folder, host = folder or paths.queue_folder(), socket.gethostname()
    found = {Run(folder.parent / "runs" / name): entry
             for name, entry in waiting.line(folder).items() if entry.host == host}
    return {run: entry for run, entry in found.items()
            if not run.supervised() and _ours(run)
            and not (entry.sweep and locked(waiting.sweep_lock(folder, entry.sweep)))}


def ensure(folder: Path | None = None) -> int:
    """Start the supervisors of those runs, or the process of the sweep that does. Returns how many
    runs there were, and sweeps of which none waits. Raises UserError where that can't be."""
    folder = folder or paths.queue_folder()
    runs = alone(folder)
    # Sweeps first: from here on their members count as being ahead of the runs behind them.
    sweeps, left = {e.sweep for e in runs.values() if e.sweep is not None}, {*_left(folder)}
    for sweep in sorted(sweeps | left):
        with telling(f"the process of sweep {sweep} can't be started"):
            start_sweep(folder, sweep)
    for run, entry in runs.items():
        if entry.sweep is None:
            start(run)
    return len(runs) + len(left - sweeps)


def _left(folder: Path) -> Iterator[str]:
    """The sweeps whose process was killed here: it would have removed its lock file."""
    for path in folder.glob("s*.lock"):
        with contextlib.suppress(OSError):
            if waiting.ID.fullmatch(path.stem) and not locked(path) \
                    and read_inside(folder, path.name) == socket.gethostname().encode():
                yield path.stem


def start_sweep(folder: Path, sweep: str) -> None:
    """Start the process that starts a sweep's members, unless it runs. It inherits the lock. Raises
    OSError."""
    path, flags = waiting.sweep_lock(folder, sweep), os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    low = os.open(path, os.O_RDWR | flags, 0o600)
    lock = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)  # a child's 0 to 2 are replaced
    os.close(low)
    try:
        if take_lock(lock):
            os.pwrite(lock, socket.gethostname().encode(), 0)  # others may share the folder
            log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | flags, 0o600)
            logind.start(log, "gpu_engine.sweep", str(folder), sweep, str(lock), pass_fds=(lock,))
    finally:
        os.close(lock)


def start(run: Run) -> bool:
    """Start the supervisor of a waiting run. Returns False if it has one, or waits no longer.
    Raises UserError where it can't be started."""
    with telling(f"run {run.id} can't be started"):
        lock = lock_of(run.path)
        recorded = State.from_dict(json_inside(run.path, "state.json")) if take_lock(lock) else None
    if recorded is None or waiting.judge(recorded, run.path, held=False) is None \
            or not _ours(run):
        os.close(lock)
        return False
    with contextlib.suppress(OSError):
        # Nor does what the last one waited for hold any more, nor is a stop for that process.
        run.write_state(replace(recorded, pid=None, ticks=None, reason=None if
                                recorded.state == "queued" else recorded.reason), settled=False)
    supervise(run, lock)
    return True


def _ours(run: Run) -> bool:
    """Whether the run was submitted here and nobody else can write to its folder."""
    return trust.started_here(run.path) and trust.why_not_ours(run.path) is None
