"""Lines of a file that may hold gigabytes and may grow, shrink or be replaced while it is read.

Only the number of line ends in each block is kept (a gigabyte has 16 thousand blocks); to find a
line, its block is read again. Every line goes through `clean` before it is returned.
"""

from __future__ import annotations

import os
import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

from gpu_engine.common.clean import clean_bytes, clean_lines
from gpu_engine.common.files import open_inside, reason
from gpu_engine.events.paths import inside

BLOCK = 1 << 16
_AHEAD = 1 << 18
"""Bytes that a search reads at a time."""
_LONGEST = 1 << 18
"""Bytes of a line that are shown: of a longer line, half from its start and half from its end."""
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]")
"""What is shown otherwise than it stands in the file: tabs, escapes, rewritten lines."""
_REDRAWN = 1 << 15
"""Bytes read at the end of a line that redraws itself (a progress bar), for its last state."""


class Lines:
    """The lines that a log view shows."""

    generation = 0
    """Rises when line numbers start to mean other lines."""
    gone = 0
    """Lines that have been dropped at the front since it was opened."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def missing(self) -> bool:
        """Whether there is no file."""
        return False

    @property
    def trouble(self) -> str | None:
        """Why an existing file can't be read."""
        return None

    @property
    def share(self) -> float:
        """The share of the file that has been read, from 0 to 1."""
        return 1.0

    def update(self, limit: int = 4 << 20) -> bool:
        """Count the lines in at most `limit` new bytes. Returns whether anything changed. It may
        run in another thread than the other methods."""
        return False

    def close(self) -> None:
        pass

    def line(self, number: int) -> str:
        """The text of a line, without control characters; empty if there is no such line."""
        raise NotImplementedError

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        """(lines with `needle` in the next piece from `start`, the line after it). Ignores case if
        `needle` has no capitals. May end early once `stop` is set."""
        raise NotImplementedError


class TextLines(Lines):
    def __init__(self, title: str, text: str) -> None:
        super().__init__(title)
        self._lines = clean_lines(text.rstrip("\n"))

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, number: int) -> str:
        return self._lines[number] if 0 <= number < len(self._lines) else ""

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        return [i for i in range(start, len(self)) if holds(self._lines[i], needle)], len(self)


def holds(line: str, needle: str) -> bool:
    return needle in (line.lower() if needle == needle.lower() else line)


class LogFile(Lines):
    def __init__(self, path: Path, title: str) -> None:
        super().__init__(title)
        self.path = path
        self._missing = True
        self._trouble: str | None = None
        self._lock = threading.RLock()
        self._file: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._before = array("q", [0])
        """The number of line ends before each block, the growing one included."""
        self._ends = 0
        self._scanned = 0
        self._size = 0
        self._tail = False
        """Whether there is text after the last line end."""
        self._cached: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()

    @property
    def missing(self) -> bool:
        return self._missing

    @property
    def trouble(self) -> str | None:
        return self._trouble

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __len__(self) -> int:
        return self._ends + self._tail

    @property
    def scanned(self) -> int:
        return self._scanned

    @property
    def share(self) -> float:
        return 1.0 if not self._size else min(self._scanned / self._size, 1.0)

    def update(self, limit: int = 4 << 20) -> bool:
        with self._lock:
            changed = self._open()
            if self._file is None:
                return changed
            try:
                while limit > 0 and self._scanned < self._size:
                    room = len(self._before) * BLOCK - self._scanned
                    data = os.pread(self._file, room, self._scanned)
                    if not data:
                        self._size = self._scanned
                        break
                    changed = True
                    self._scanned += len(data)
                    self._ends += data.count(b"\n")
                    self._tail = not data.endswith(b"\n")
                    if len(data) == room:
                        self._before.append(self._ends)
                    limit -= len(data)
            except OSError:
                self._missing = True
            return changed

    def line(self, number: int) -> str:
        """As `Lines.line`. A very long line is shortened in the middle."""
        with self._lock:
            found = self._extent(number)
            if found is None or self._file is None:
                return ""
            begin, end = found
            try:
                size = end - begin
                if size > _REDRAWN:
                    # A progress bar of hours is one line; its last state is what matters.
                    last = os.pread(self._file, _REDRAWN, end - _REDRAWN)
                    if b"\r" in last.rstrip(b"\r"):
                        return clean_bytes(last[last.index(b"\r") + 1:], None)
                if size <= _LONGEST:
                    return clean_bytes(os.pread(self._file, size, begin), None)
                half = _LONGEST // 2
                left = f" … {size - 2 * half:,} bytes left out … ".encode()
                return clean_bytes(os.pread(self._file, half, begin) + left
                                   + os.pread(self._file, half, end - half), None)
            except OSError:
                return ""

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        """As `Lines.matching`. Searches raw bytes first, then the lines that may match."""
        if self._file is None or not 0 <= start < len(self):
            return [], max(start, len(self))
        fold, raw, data = needle == needle.lower(), needle.encode(), self._ahead(start)
        body, end, _ = data.rpartition(b"\n")
        if not end:  # a long line, or the last one
            return [start] * holds(self.line(start), needle), start + 1
        rows = body.split(b"\n")
        # What is not ASCII, or has control characters, is shown otherwise than it stands there.
        sure, odd = raw.isascii(), _CONTROL.search(body) is not None
        if sure and not odd and raw not in (body.lower() if fold else body):
            return [], start + len(rows)
        places = [start + i for i, row in enumerate(rows) if not sure
                  or raw in (row.lower() if fold else row) or (odd and _CONTROL.search(row))]
        return [number for number in places
                if not stop.is_set() and holds(self.line(number), needle)], start + len(rows)

    def _ahead(self, number: int) -> bytes:
        with self._lock:
            found = self._extent(number)
            if found is None or self._file is None:
                return b""
            try:
                return os.pread(self._file, min(_AHEAD, self._scanned - found[0]), found[0])
            except OSError:
                return b""

    # --- finding lines in the file; call these with the lock held -------------------------------

    def _open(self) -> bool:
        """Open the file, again if it was replaced or cut. Returns whether line numbers changed."""
        try:
            stat = self.path.lstat()
        except OSError:
            self._missing = True
            return False
        changed = False
        if self._file is not None:
            mine = os.fstat(self._file)
            if (mine.st_ino, mine.st_dev) != (stat.st_ino, stat.st_dev) \
                    or stat.st_size < self._scanned:
                self.close()
                self._reset()
                self.generation += 1
                changed = True
        if self._file is None:
            try:
                self._file = open_inside(*inside(self.path))
            except OSError as err:
                self._missing = True
                self._trouble = None if isinstance(err, FileNotFoundError) \
                    else f"{self.path.name} can't be read: {reason(err)}"
                return changed
        self._missing = False
        self._size = stat.st_size
        return changed

    def _extent(self, number: int) -> tuple[int, int] | None:
        if not 0 <= number < len(self):
            return None
        begin = 0 if number == 0 else self._end_of(number - 1) + 1
        return begin, self._end_of(number) if number < self._ends else self._scanned

    def _end_of(self, number: int) -> int:
        block = bisect_right(self._before, number) - 1
        positions = self._positions(block)
        at = number - self._before[block]
        return positions[at] if at < len(positions) else self._scanned

    def _positions(self, block: int) -> list[int]:
        """The positions of the line ends in a block."""
        upto = min((block + 1) * BLOCK, self._scanned)
        known = self._cached.get(block)
        if known is not None and known[0] == upto:
            self._cached.move_to_end(block)
            return known[1]
        base = block * BLOCK
        data = os.pread(self._file, upto - base, base) if self._file is not None else b""
        found, at = [], data.find(b"\n")
        while at >= 0:
            found.append(base + at)
            at = data.find(b"\n", at + 1)
        self._cached[block] = (upto, found)
        while len(self._cached) > 64:
            self._cached.popitem(last=False)
        return found

