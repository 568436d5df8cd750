"""Ends a rank that nobody could stop any more.

Ranks that a person's own launcher started carry no parent-death signal; should their supervisor
be killed, its guard ends them. Should both be killed at once, each rank ends itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ..common import procs

_EVERY = 1.0
_PATIENCE = 2.0  # the guard comes first


def held() -> Callable[[], None] | None:
    """Something to call now and then, which may not return. None where no supervisor can be seen
    from here, as on another machine or in another pid namespace: that says nothing about it."""
    pid, _, ticks = os.environ.get("GPU_PANEL_SUPERVISOR", "").partition(":")
    if not (pid.isdecimal() and ticks.isdecimal()) or not procs.alive(int(pid), int(ticks)):
        return None
    due = gone_since = 0.0

    def look() -> None:
        nonlocal due, gone_since
        now = time.monotonic()
        if now < due:
            return
        due = now + _EVERY
        if procs.alive(int(pid), int(ticks)):
            gone_since = 0.0
        elif not gone_since:
            gone_since = now
        elif now - gone_since >= _PATIENCE:
            os.kill(os.getpid(), signal.SIGKILL)

    return look
