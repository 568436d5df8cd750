"""Ends a rank that nobody could stop any more.

Ranks that a person's own launcher started carry no parent-death signal; should their supervisor
be killed, its guard ends them. Should both be killed at once, each rank ends itself.
"""

from __future__ import annotations

import os
import signal
import time

from ..common import procs

_EVERY = 1.0
_PATIENCE = 2.0  # the guard comes first


class Lifeline:
    """Whether the supervisor, a process with this pid and start time, lives."""

    def __init__(self, pid: int, start_ticks: int) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._due = 0.0
        self._gone_since: float | None = None

    @classmethod
    def of_supervisor(cls) -> Lifeline | None:
        """To this run's supervisor. None where it can't be seen from here, as on another machine
        or in another pid namespace: that says nothing about it."""
        pid, _, ticks = os.environ.get("GPU_PANEL_SUPERVISOR", "").partition(":")
        if not (pid.isdecimal() and ticks.isdecimal()) or not procs.alive(int(pid), int(ticks)):
            return None
        return cls(int(pid), int(ticks))

    def check(self) -> None:
        """Look once a second at most. Kills this process if the supervisor has been gone for two
        seconds."""
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
