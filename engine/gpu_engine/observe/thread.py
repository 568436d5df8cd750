"""The thread that writes what is observed: none of Python's `threading`, so that a script that
counts its threads counts its own. It stops for the moment of a fork and goes on after it, and a
write that hangs (a disk that does not answer) neither ends it nor holds the script up for long."""

from __future__ import annotations

import _thread
from collections.abc import Callable

_TICK = 0.2
_PATIENCE = 1.0
"""Seconds that whoever wants the thread to end waits for a write that hangs."""


class Turn:
    """One thread's life. Each has locks of its own, so that a thread that hangs in a write and
    hears late that it should end can't end the one after it."""

    def __init__(self, tick: Callable[[], None], ended: Callable[[Turn], None]) -> None:
        """`tick` is called five times a second, `ended` at the end, whatever the reason."""
        self._tick, self._ended = tick, ended
        self._stop, self._gone = _thread.allocate_lock(), _thread.allocate_lock()
        self._stop.acquire()
        self._gone.acquire()
        self._asked = False
        self._ticks = 0
        self._hung_at = -1
        _thread.start_new_thread(self._live, ())

    def end(self) -> bool:
        """Ask it to end and wait a moment; False: it hangs. For one hanging write nobody waits
        twice."""
        if not self._asked:
            self._asked = True
            self._stop.release()
        if self._gone.acquire(timeout=0 if self._hung_at == self._ticks else _PATIENCE):
            return True
        self._hung_at = self._ticks
        return False

    def go_on(self) -> bool:
        """Have it run on, should it have been asked to end; False: it has heard that and ends."""
        if self._asked and self._stop.acquire(blocking=False):
            self._asked = False
        return not self._asked

    def _live(self) -> None:
        try:
            while not self._stop.acquire(timeout=_TICK):  # the least that can wake a thread
                self._tick()
                self._ticks += 1
        finally:
            self._ended(self)
            self._gone.release()
