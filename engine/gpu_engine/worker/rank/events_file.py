"""A rank's events file, which survives a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ...events import notices
from ...events.writer import EventWriter, encode

RETRY = 5.0
"""Seconds between two tries to write to a full disk."""


class EventsFile:
    """Appends events. On a full disk it pauses and counts the events that are lost; when there is
    room again, it records a warning with their number."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Open `path` for appending. `complain` is called with a sentence when the first write
        fails. Raises OSError."""
        self._out = EventWriter(path)
        self._complain = complain
        self._paused_at: float | None = None
        self._retry_at = 0.0
        self._lost = 0

    def write(self, *lines: bytes, urgent: bool = False) -> None:
        """Append whole lines. `urgent`: try even if the last try has just failed."""
        now = time.monotonic()
        if self._paused_at is not None and now < self._retry_at and not urgent:
            self._lost += len(lines)
            return
        try:
            if self._paused_at is not None:
                # The write that failed may have left half a line: close it first.
                self._out.write(b"\n", encode(notices.not_recorded(
                    now - self._paused_at, self._lost)))
                self._paused_at, self._lost = None, 0
            self._out.write(*lines)
        except OSError as err:
            if self._paused_at is None:
                self._paused_at = now
                self._complain(f"events can't be written: {err}")
            self._retry_at = now + RETRY
            self._lost += len(lines)
