"""Ends a rank that nobody could stop any more.

Ranks that a person's own launcher has started have no parent-death signal. If their supervisor is
killed, its guard ends them. If both are killed at once, each rank ends itself.
"""

from __future__ import annotations

import os
import signal
import time

from ..common import procs

_EVERY = 1.0
_PATIENCE = 2.0  # longer than the guard takes


class Lifeline:
    """Watches the supervisor, known by its pid and start time."""

    def __init__(self, pid: int, start_ticks: int) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._due = 0.0
        self._gone_since: float | None = None

    @classmethod
    def of_supervisor(cls) -> Lifeline | None:
        """The lifeline to this run's supervisor. None if it can't be seen from here, as on another
        machine or in another pid namespace: it may well be alive."""
        pid, _, ticks = os.environ.get("GPU_PANEL_SUPERVISOR", "").partition(":")
        if not (pid.isdecimal() and ticks.isdecimal()) or not procs.alive(int(pid), int(ticks)):
            return None
        return cls(int(pid), int(ticks))

    def check(self) -> None:
        """Check on the supervisor, once a second at most. Kills this process if the supervisor has
        been gone for two seconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY
        if procs.alive(self._pid, self._start_ticks):
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since >= _PATIENCE:
            os.kill(os.getpid(), signal.SIGKILL)
