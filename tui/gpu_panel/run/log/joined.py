"""A log together with the older part that was set aside when it grew too large.

The supervisor copies the content of such a log to NNNNN.log.1, replacing that file, and empties the
log. Here both are one text with continuous line numbers.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from gpu_panel.run.log.file import Lines, LogFile

_PATIENCE = 1.0
"""The most seconds between the supervisor's copy and the emptying of the log."""

Identity = tuple[int, int] | None


class JoinedLog(Lines):
    """Both parts as one."""

    def __init__(self, path: Path, title: str) -> None:
        super().__init__(title)
        self.path = path
        self._lock = threading.RLock()
        self._now = LogFile(path, title)
        self._older: LogFile | None = None
        self._older_id: Identity = None
        self._opened = False
        self._noticed: float | None = None
        """When a new older part came while the log was not emptied yet, monotonic seconds."""

    def __len__(self) -> int:
        with self._lock:
            return self._first + len(self._now)

    @property
    def _first(self) -> int:
        """The line number at which the newer part starts."""
        return len(self._older) if self._older is not None else 0

    @property
    def share(self) -> float:
        return self._now.share

    @property
    def missing(self) -> bool:
        return self._now.missing and self._older is None

    @property
    def trouble(self) -> str | None:
        return self._now.trouble

    def close(self) -> None:
        with self._lock:
            self._now.close()
            if self._older is not None:
                self._older.close()

    def update(self, limit: int = 4 << 20) -> bool:
        """As `Lines.update`, and count those in all of a new older part."""
        older = self.path.with_name(self.path.name + ".1")
        found = _identity(older)
        if not self._opened or found != self._older_id:
            if self._opened and not self._was_cut():
                return False
            self._read_older(older, found, limit)
            return True
        before = self._now.generation
        changed = self._now.update(limit)
        self.generation += self._now.generation - before  # emptied by something else
        return changed

    def line(self, number: int) -> str:
        with self._lock:
            if self._older is not None and number < self._first:
                return self._older.line(number)
            return self._now.line(number - self._first)

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        with self._lock:
            first, older, now = self._first, self._older, self._now
        if older is not None and start < first:
            found, after = older.matching(needle, start, stop)
            return [n for n in found if n < first], min(after, first)
        found, after = now.matching(needle, start - first, stop)
        return [first + n for n in found], first + after

    def _was_cut(self) -> bool:
        """Whether the log was emptied, as it is right after it was copied. One that has grown as
        long again by then counts as emptied after a moment."""
        try:
            if self.path.stat().st_size < self._now.scanned:
                return True
        except OSError:
            return True
        now = time.monotonic()
        self._noticed = self._noticed or now
        return now - self._noticed > _PATIENCE

    def _read_older(self, path: Path, identity: Identity, limit: int) -> None:
        """Read the older part, start again with the newer one, and replace both at once."""
        older = LogFile(path, self.title) if identity is not None else None
        while older is not None and (older.update() or older.share < 1.0):
            if older.missing:
                break
        newer = LogFile(self.path, self.title)
        newer.update(limit)
        with self._lock:
            if self._opened:
                moved = len(self._now)  # lines that are now in the older part, or were left out
                self.gone += self._first + max(moved - len(older or ()), 0)
                self.generation += 1
            self.close()
            self._older, self._now, self._older_id = older, newer, identity
            self._opened, self._noticed = True, None


def _identity(path: Path) -> Identity:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
