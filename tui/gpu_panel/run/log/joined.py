"""A log together with the older part that was set aside when it grew too large.

The supervisor copies the content of such a log to NNNNN.log.1, replacing that file, and empties the
log. Here both are one text with continuous line numbers. `gone` counts the lines that have been
dropped at the front, so that a view can stay at the lines that it shows.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from gpu_engine.common.files import file_inside
from gpu_engine.events.paths import inside
from gpu_panel.run.log.file import LogFile

_HEAD = 256
"""Bytes at the start of a log by which its copy is recognised."""
_PATIENCE = 1.0
"""The most seconds between the supervisor's copy and the emptying of the log."""

Identity = tuple[int, int] | None


class JoinedLog:
    """Both parts as one. `update` may run in another thread than the other methods."""

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title = path, title
        self.generation = 0
        """Rises when line numbers start to mean other lines."""
        self.gone = 0
        """Lines that have been dropped at the front since it was opened."""
        self._lock = threading.RLock()
        self._now = LogFile(path, title)
        self._older: LogFile | None = None
        self._older_id: Identity = None
        self._opened = False
        self._head = b""
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
        """The share of the newer part that has been read, from 0 to 1."""
        return self._now.share

    @property
    def missing(self) -> bool:
        """Whether neither part exists."""
        return self._now.missing and self._older is None

    @property
    def trouble(self) -> str | None:
        """Why an existing log can't be read."""
        return self._now.trouble

    def close(self) -> None:
        with self._lock:
            self._now.close()
            if self._older is not None:
                self._older.close()

    def update(self, limit: int = 4 << 20) -> bool:
        """Count the lines in at most `limit` new bytes, and in all of a new older part. Returns
        whether anything changed."""
        older = self._set_aside()
        found = _identity(older)
        if not self._opened or (found != self._older_id and self._was_cut()):
            self._read_older(older, found, limit)
            return True
        before = self._now.generation
        changed = self._now.update(limit)
        if self._now.generation != before:  # emptied by something else than our supervisor
            self.generation += 1
            self._head = b""
        if len(self._head) < _HEAD and changed:
            self._head = _begins(self.path, _HEAD)
        return changed

    def line(self, number: int) -> str:
        with self._lock:
            if self._older is not None and number < self._first:
                return self._older.line(number)
            return self._now.line(number - self._first)

    def find(self, needle: str, start: int, step: int, stop: threading.Event) -> int | None:
        with self._lock:
            parts = [(0, self._older)] if self._older is not None else []
            parts.append((self._first, self._now))
        for base, part in parts[::step]:
            begin = start - base
            if (begin < 0 if step < 0 else begin >= len(part)):
                continue
            begin = min(max(begin, 0), len(part) - 1)
            found = part.find(needle, begin, step, stop) if len(part) else None
            if found is not None:
                return base + found
        return None

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        with self._lock:
            first, older, now = self._first, self._older, self._now
        if older is not None and start < first:
            found, after = older.matching(needle, start, stop)
            return [n for n in found if n < first], min(after, first)
        found, after = now.matching(needle, start - first, stop)
        return [first + n for n in found], first + after

    def _set_aside(self) -> Path:
        return self.path.with_name(self.path.name + ".1")

    def _was_cut(self) -> bool:
        """Whether the log was emptied, as it is after each copy. A log that starts with the same
        bytes again can't be told from the old one, so it counts as emptied after a moment."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return True
        if size < self._now.scanned or _begins(self.path, len(self._head)) != self._head:
            return True
        now = time.monotonic()
        if self._noticed is None:
            self._noticed = now
        return now - self._noticed > _PATIENCE

    def _read_older(self, path: Path, identity: Identity, limit: int) -> None:
        """Read the older part, start again with the newer one, and replace both at once."""
        older = LogFile(path, self.title) if identity is not None else None
        while older is not None and (older.update() or older.share < 1.0):
            if older.missing:
                break
        newer = LogFile(self.path, self.title)
        newer.update(limit)
        whole = older is not None and bool(self._head) \
            and _begins(path, len(self._head)) == self._head
        with self._lock:
            if self._opened:
                moved = len(self._now)  # lines that are now in the older part
                kept = moved if whole else min(moved, len(older) if older is not None else 0)
                self.gone += self._first + moved - kept
                self.generation += 1
            self.close()
            self._older, self._now, self._older_id = older, newer, identity
            self._opened, self._noticed = True, None
            self._head = _begins(self.path, _HEAD)


def _identity(path: Path) -> Identity:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _begins(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file; empty if it can't be read."""
    try:
        with file_inside(*inside(path)) as file:
            return file.read(count)
    except OSError:
        return b""
