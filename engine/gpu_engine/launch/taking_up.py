"""Runs on hosts that go on there although their process here has ended: the next command, or the
panel, starts that process again.

The run's lock keeps two from doing so: the one that gets it hands it to the new process.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_json
from gpu_engine.launch.launcher import supervise
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run, all_runs
from gpu_engine.runs.state import State
from gpu_engine.spanning import parts


def take_up(run: Run) -> bool:
    """If `run` is on hosts, has not ended and has no process here, start one. Returns whether it
    was started. Raises UserError if it can't be."""
    if not parts.spans(run.path) or _left(run) is None or run.supervised():
        return False
    try:
        lock = lock_of(run.path)
    except OSError as err:
        raise UserError(f"run {run.id} can't be taken up: {err.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody else does
        os.close(lock)
        return False
    recorded = _left(run)
    if recorded is None or not parts.read(run.path):
        os.close(lock)
        return False
    try:
        # Whoever wants to stop it waits for the new process's id.
        run.write_state(replace(recorded, pid=None, ticks=None, boot=procs.boot_id()))
    except OSError as err:
        os.close(lock)
        raise UserError(f"run {run.id} can't be taken up: {err.strerror}") from None
    supervise(run, lock)
    return True


def take_up_all() -> list[Run]:
    """`take_up` for all runs; returns those that were. If one can't be, the others are."""
    out = []
    for run in all_runs():
        try:
            if take_up(run):
                out.append(run)
        except UserError:
            continue
    return out


def _left(run: Run) -> State | None:
    """The recorded state of a run that has not ended, else None."""
    recorded = State.from_dict(read_json(run.path / "state.json"))
    return recorded if recorded is not None and recorded.live else None
