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
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gpu_engine.common.clean import clean_bytes, clean_lines
from gpu_engine.common.files import open_inside, reason
from gpu_engine.events.paths import inside

BLOCK = 1 << 16
"""Bytes of a block."""
_AHEAD = 1 << 18
"""Bytes that a search reads at a time."""
_LONGEST = 1 << 18
"""Bytes of a line that are shown: of a longer line, half from its start and half from its end."""
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]")
"""What is shown otherwise than it stands in the file: tabs, escapes, rewritten lines."""
_REDRAWN = 1 << 15
"""Bytes read at the end of a line that redraws itself (a progress bar), for its last state."""


class Lines(Protocol):
    """The lines that a log view shows."""

    title: str

    def __len__(self) -> int: ...
    def line(self, number: int) -> str:
        """The text of a line, without control characters; empty if there is no such line."""
        ...

    def find(self, needle: str, start: int, step: int, stop: threading.Event) -> int | None:
        """The number of the next line with `needle`, from `start` on (step 1) or backwards
        (step -1); None if there is none or `stop` was set. Ignores case if `needle` has no
        capitals."""
        ...

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        """(lines with `needle` in the next piece from `start`, the line after it). As in `find`."""
        ...


class TextLines:
    """Lines that are in memory: a traceback."""

    def __init__(self, title: str, text: str) -> None:
        self.title = title
        self._lines = clean_lines(text.rstrip("\n"))

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, number: int) -> str:
        return self._lines[number] if 0 <= number < len(self._lines) else ""

    def find(self, needle: str, start: int, step: int, stop: threading.Event) -> int | None:
        fold = needle == needle.lower()
        for i in range(start, len(self._lines) if step > 0 else -1, step):
            if needle in (self._lines[i].lower() if fold else self._lines[i]):
                return i
        return None

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        fold = needle == needle.lower()
        return [i for i in range(start, len(self))
                if needle in (self._lines[i].lower() if fold else self._lines[i])], len(self)


class LogFile:
    """The lines of a file. `update` reads what is new, a bounded amount at a time; the other
    methods only look lines up. They may run in another thread than `update`."""

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title = path, title
        self.missing = True
        self.trouble: str | None = None
        """Why an existing file can't be read."""
        self.generation = 0
        """Rises when the file is replaced or cut, as line numbers then mean other lines."""
        self._lock = threading.RLock()
        self._file: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._before = array("q", [0])
        """The number of line ends before each block, the growing one included."""
        self._ends = 0
        """The number of line ends in all."""
        self._scanned = 0
        self._size = 0
        self._tail = False
        """Whether there is text after the last line end."""
        self._cached: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __len__(self) -> int:
        return self._ends + self._tail

    @property
    def scanned(self) -> int:
        """Bytes read through so far."""
        return self._scanned

    @property
    def share(self) -> float:
        """The share of the file that has been read, from 0 to 1."""
        return 1.0 if not self._size else min(self._scanned / self._size, 1.0)

    def update(self, limit: int = 4 << 20) -> bool:
        """Count the lines in at most `limit` new bytes. Returns whether anything changed."""
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
                self.missing = True
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
                        return clean_bytes(last[last.index(b"\r") + 1:], _LONGEST)
                if size <= _LONGEST:
                    return clean_bytes(os.pread(self._file, size, begin), _LONGEST)
                half = _LONGEST // 2
                left = f" … {size - 2 * half:,} bytes left out … ".encode()
                return clean_bytes(os.pread(self._file, half, begin) + left
                                   + os.pread(self._file, half, end - half), 2 * _LONGEST)
            except OSError:
                return ""

    def find(self, needle: str, start: int, step: int, stop: threading.Event) -> int | None:
        """As `Lines.find`. Searches blocks of raw bytes first, then the lines that match."""
        number = start
        while 0 <= number < len(self) and not stop.is_set() and self._file is not None:
            rows = self._rows(number, step)
            for i in self._hits(rows, needle):
                if self._holds(number + i * step, needle):
                    return number + i * step
            number += len(rows) * step
        return None

    def matching(self, needle: str, start: int, stop: threading.Event) -> tuple[list[int], int]:
        if self._file is None or not 0 <= start < len(self):
            return [], max(start, len(self))
        rows = self._rows(start, 1)
        return [start + i for i in self._hits(rows, needle)
                if not stop.is_set() and self._holds(start + i, needle)], start + len(rows)

    def _hits(self, rows: list[bytes], needle: str) -> Sequence[int]:
        """The places of the rows that may hold `needle`."""
        fold = needle == needle.lower()
        raw = needle.encode()
        if not raw.isascii() or len(rows) == 1:
            return range(len(rows))  # the bytes may differ from what is shown: check each line
        whole = b"\n".join(rows)
        odd = _CONTROL.search(whole) is not None
        if not odd and raw not in (whole.lower() if fold else whole):
            return []
        return [i for i, row in enumerate(rows) if raw in (row.lower() if fold else row)
                or (odd and _CONTROL.search(row) is not None)]

    def _holds(self, number: int, needle: str) -> bool:
        shown = self.line(number)
        return needle in (shown.lower() if needle == needle.lower() else shown)

    def _rows(self, number: int, step: int) -> list[bytes]:
        """The raw bytes of at least one line, from `number` on or backwards."""
        with self._lock:
            found = self._extent(number)
            if found is None or self._file is None:
                return [b""]
            begin, end = found
            try:
                if step > 0:
                    data = os.pread(self._file, _AHEAD, begin)
                    rows = data[:max(self._scanned - begin, 0)].split(b"\n")
                    return rows[:-1] or [b""]
                data = os.pread(self._file, min(_AHEAD, end), end - min(_AHEAD, end))
            except OSError:
                return [b""]
            rows = data.split(b"\n")[::-1]
            return rows if len(data) == end else rows[:-1] or [b""]

    # --- finding lines in the file; call these with the lock held -------------------------------

    def _open(self) -> bool:
        """Open the file, again if it was replaced or cut. Returns whether line numbers changed."""
        try:
            stat = self.path.lstat()
        except OSError:
            self.missing = True
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
                self.missing = True
                self.trouble = None if isinstance(err, FileNotFoundError) else reason(err)
                return changed
        self.missing = False
        self._size = stat.st_size
        return changed

    def _extent(self, number: int) -> tuple[int, int] | None:
        """The first byte of a line and the byte after its last."""
        if not 0 <= number < len(self):
            return None
        begin = 0 if number == 0 else self._end_of(number - 1) + 1
        return begin, self._end_of(number) if number < self._ends else self._scanned

    def _end_of(self, number: int) -> int:
        """The position of the end of line `number`."""
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

