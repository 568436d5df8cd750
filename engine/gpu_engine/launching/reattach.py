"""Runs on hosts that go on there although their process here has ended: the next command, or the
panel, starts that process again.

The run's lock keeps two from doing so: the one that gets it hands it to the new process.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import replace

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import json_inside, locked, open_inside, take_lock
from gpu_engine.events.notices import NOT_FETCHED
from gpu_engine.launching import logind
from gpu_engine.launching.launcher import supervise
from gpu_engine.remote.run import parts, rest
from gpu_engine.runs import trust
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.state import State

_MOST = 5
"""How often one command takes up the same run."""
_AGAIN = 60.0
"""Seconds between two tries to fetch the rest of a run that nobody asks for."""


def reattach(run: Run, *, wait: float = 0.0) -> bool:
    """If `run`, which was started from here, is on hosts, has not ended and has no process here,
    start one. Returns whether it goes on with a new one. If it has ended, and a host was away then,
    what that has of it is fetched, for which `wait` seconds are waited. Raises UserError if it
    can't be."""
    if not parts.spans(run.path) or not trust.started_here(run.path) or run.supervised():
        return False
    if _left(run) is None:
        _fetch(run, wait)
        return False
    with telling(f"run {run.id} can't be reattached"):
        lock = lock_of(run.path)
        taken = take_lock(lock)
    if not taken:  # somebody else does
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
        raise UserError(f"run {run.id} can't be reattached: {err.strerror}") from None
    supervise(run, lock)
    return True


def _fetch(run: Run, wait: float) -> None:
    """Where nobody waits for it, once a minute."""
    path = run.path / rest.LOCK
    if all(one.code != NOT_FETCHED for one in run.state().warnings):
        return
    with suppress(OSError):
        if wait == 0 and time.time() - path.stat().st_mtime < _AGAIN:
            return
    with telling(f"what the hosts of run {run.id} have can't be fetched"):
        low = open_inside(run.path, rest.LOCK, os.O_RDWR | os.O_CREAT)
        lock = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)  # a child's 0 to 2 are replaced
        os.close(low)
        try:
            if take_lock(lock):  # else somebody else does it
                os.utime(lock)
                log = open_inside(run.path, "supervisor.log", os.O_WRONLY | os.O_APPEND)
                logind.start(log, "gpu_engine.remote.run", str(run.path), str(lock), "rest",
                             pass_fds=(lock,))
        finally:
            os.close(lock)
    end = time.monotonic() + wait
    while time.monotonic() < end and locked(path):
        time.sleep(0.05)


class StillOn:
    """Says whether a run that is being followed goes on. A run on hosts whose process here was
    killed is taken up again, but not for ever if that process ends each time."""

    def __init__(self, run: Run) -> None:
        self._run, self._left = run, _MOST

    def __call__(self, state: State) -> bool:
        """`state`: the run's, as it was read last."""
        if not state.live or not parts.spans(self._run.path) or self._run.supervised():
            return state.live
        self._left -= 1
        with suppress(UserError):
            reattach(self._run)
        return self._left >= 0


def reattach_all() -> list[Run]:
    """`reattach` for all runs; returns those that were. If one can't be, the others are."""
    out = []
    for run in each_run():
        try:
            if reattach(run):
                out.append(run)
        except UserError:
            continue
    return out


def _left(run: Run) -> State | None:
    """The recorded state of a run that has not ended, else None."""
    recorded = State.from_dict(json_inside(run.path, "state.json"))
    return recorded if recorded is not None and recorded.live else None
