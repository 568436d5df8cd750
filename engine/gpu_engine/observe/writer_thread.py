"""The thread that writes what is observed. It does not appear in Python's `threading`, so a script
that counts its threads finds only its own. It ends before a fork and is started once more after it.
A write that hangs, as on a disk that does not answer, holds up the script only for a moment."""

from __future__ import annotations

import _thread
from collections.abc import Callable

_TICK = 0.2
_PATIENCE = 1.0
"""Seconds to wait for the thread's end while a write hangs."""


class WriterThread:
    """One thread, from its start to its end. Each has its own locks. So a thread that hangs in a
    write, and is told to end, leaves its successor alone."""

    def __init__(self, tick: Callable[[], None],
                 ended: Callable[[WriterThread], None]) -> None:
        """Start the thread. It calls `tick` five times a second, and `ended` at its end, in any
        case."""
        self._tick, self._ended = tick, ended
        self._stop, self._gone = _thread.allocate_lock(), _thread.allocate_lock()
        self._stop.acquire()
        self._gone.acquire()
        self._told_to_end = False
        self._ticks = 0
        self._hung_at = -1
        _thread.start_new_thread(self._live, ())

    def end(self) -> bool:
        """Tell the thread to end, and wait for it for a second. Returns False if it hangs. The same
        hanging write is waited for only once."""
        if not self._told_to_end:
            self._told_to_end = True
            self._stop.release()
        if self._gone.acquire(timeout=0 if self._hung_at == self._ticks else _PATIENCE):
            return True
        self._hung_at = self._ticks
        return False

    def go_on(self) -> bool:
        """Let the thread go on if it was told to end but has not noticed yet. Returns False if it
        ends."""
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
