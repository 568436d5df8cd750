"""The thread that writes what is observed. It is none of Python's `threading`, so that a script
that counts its threads counts its own. It stops for the moment of a fork and goes on after it. A
write that hangs (a disk that does not answer) neither ends it nor holds the script up for long."""

from __future__ import annotations

import _thread
from collections.abc import Callable

_TICK = 0.2
_PATIENCE = 1.0
"""Seconds to wait for the thread's end while a write hangs."""


class WriterThread:
    """One thread, from its start to its end. Each has locks of its own, so that a thread that hangs
    in a write, and hears late that it is to end, can't end the one after it."""

    def __init__(self, tick: Callable[[], None],
                 ended: Callable[[WriterThread], None]) -> None:
        """Start it. `tick` is called five times a second; `ended` at the end, whatever ended
        it."""
        self._tick, self._ended = tick, ended
        self._stop, self._gone = _thread.allocate_lock(), _thread.allocate_lock()
        self._stop.acquire()
        self._gone.acquire()
        self._told_to_end = False
        self._ticks = 0
        self._hung_at = -1
        _thread.start_new_thread(self._live, ())

    def end(self) -> bool:
        """Tell it to end and wait a moment; False: it hangs. The same hanging write is waited
        for once."""
        if not self._told_to_end:
            self._told_to_end = True
            self._stop.release()
        if self._gone.acquire(timeout=0 if self._hung_at == self._ticks else _PATIENCE):
            return True
        self._hung_at = self._ticks
        return False

    def go_on(self) -> bool:
        """Have it run on if it was told to end and has not heard that yet; False: it ends."""
        if self._told_to_end and self._stop.acquire(blocking=False):
            self._told_to_end = False
        return not self._told_to_end

    def _live(self) -> None:
        try:
            while not self._stop.acquire(timeout=_TICK):  # costs less than any other way to wait
                self._tick()
                self._ticks += 1
        finally:
            self._ended(self)
            self._gone.release()
