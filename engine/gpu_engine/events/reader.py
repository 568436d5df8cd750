"""Reading events files, also while ranks are writing them. The only parser of these files.

The last line of a live file may be half written: it is kept until the rest is there. Lines that do
not parse are left out and counted; unknown kinds and fields are left out.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from gpu_engine.common.files import file_inside
from gpu_engine.events.decode import from_dict
from gpu_engine.events.frequent import EventOrBatch, grouped
from gpu_engine.events.paths import inside
from gpu_engine.events.schema import Event, Start, Step

END = 64 * 1024
"""How many bytes are read from the end of a large file, where only its end matters."""

_Kind = TypeVar("_Kind", bound=Event)
_decoded = json.JSONDecoder().decode  # json.loads guesses the encoding of every line


class Tail:
    """Reads the new events of one file. It remembers its place: inode, offset, unfinished line.

    A file that does not exist yet gives nothing. A file that shrank or was replaced is read from
    the beginning.
    """

    MAX_LINE = 8 * 1024 * 1024
    """Bytes. A longer line can't be an event and is thrown away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inside = inside(path)
        self.skipped = 0
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """How many bytes of the file have been read."""
        return self._offset

    def size(self) -> int:
        """The file's size now, in bytes; 0 if it does not exist."""
        try:
            return self.path.lstat().st_size
        except OSError:
            return 0

    def skip(self, keep: int = 0) -> None:
        """Leave out what is in the file now but for its last `keep` bytes; read those, of which the
        first may be the end of a line, and what is added later."""
        try:
            stat = self.path.lstat()
        except OSError:
            return
        begin = max(stat.st_size - keep, 0)
        if not keep or stat.st_ino != self._inode or begin > self._offset:
            self._inode, self._offset, self._rest = stat.st_ino, begin, b""

    def read(self, limit: int = 1 << 20) -> list[Event]:
        """The events that were completed since the last call. Reads at most `limit` bytes."""
        return [e for e in map(self._parse, self._lines(limit)) if e is not None]

    def read_many(self, limit: int = 1 << 20) -> list[EventOrBatch]:
        """The same, with the frequent events in batches, which is ten times as fast."""
        return grouped(self._lines(limit), self._parse)

    def _lines(self, limit: int) -> list[bytes]:
        """The lines that were completed since the last call, in at most `limit` bytes."""
        try:
            with file_inside(*self._inside) as file:
                return self._lines_of(file, limit) if self._is_new(file) else []
        except OSError:
            return []

    def _is_new(self, file: BinaryIO) -> bool:
        """Whether there is something to read. Another file is read from its beginning."""
        stat = os.fstat(file.fileno())
        if stat.st_ino != self._inode or stat.st_size < self._offset:
            self._inode, self._offset, self._rest = stat.st_ino, 0, b""
        return stat.st_size != self._offset

    def _lines_of(self, file: BinaryIO, limit: int) -> list[bytes]:
        file.seek(self._offset)
        data = file.read(limit)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self.MAX_LINE:
            self._rest = b""
            self.skipped += 1
        return lines

    def _parse(self, line: bytes) -> Event | None:
        if not line or line.isspace():
            return None
        try:
            return from_dict(_decoded(line.decode()))
        except (ValueError, RecursionError):
            self.skipped += 1
            return None


def backwards(path: Path, *kinds: type[_Kind], within: int | None = None) -> Iterator[_Kind]:
    """The events of these kinds, from the last in the file to the first. Reads no more of the file
    than the caller consumes. `within`: how many bytes before the end to look at; None: all."""
    marks = [f'"kind":"{kind.kind}"'.encode() for kind in kinds]
    try:
        with file_inside(*inside(path)) as file, \
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            first = 0 if within is None else max(0, len(text) - within)
            end = len(text)
            while end > first:
                begin = max(first, end - END)
                # A mark that crosses the border belongs to the part in which it begins.
                last = {m: text.rfind(m, begin, min(end + len(m) - 1, len(text))) for m in marks}
                while (at := max(last.values())) >= 0:
                    end, _, event = _line_at(text, at, first)
                    if isinstance(event, kinds):
                        yield event
                    # A line may have a million marks: it is read once.
                    last |= {m: text.rfind(m, begin, end) for m in marks if last[m] >= end}
                end = min(begin, end)
    except (OSError, ValueError):  # ValueError: an empty file can't be mapped
        return


def attempts(path: Path) -> Iterator[tuple[int, int]]:
    """(number, first step) of each attempt in the file that has done a step, in order. Other lines
    are not read, only looked through."""
    starts, steps = b'"kind":"start"', b'"kind":"step"'
    try:
        with file_inside(*inside(path)) as file, \
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = text.find(starts)
            while at >= 0:
                _, end, start = _line_at(text, at)
                at = text.find(starts, end)
                upto = at if at >= 0 else len(text)
                step = text.find(steps, end, upto)
                while step >= 0 and isinstance(start, Start):
                    _, end, event = _line_at(text, step)
                    if isinstance(event, Step) and event.n:
                        yield start.attempt or 1, max(event.step - event.n + 1, 0)
                        break
                    step = text.find(steps, end, upto)
    except (OSError, ValueError):  # ValueError: an empty file can't be mapped
        return


def sample(path: Path, *kinds: type[Event], parts: int, piece: int = 2048,
           end: int = 8192) -> Iterator[Event]:
    """Events of these kinds in order, each at most once: those on whole lines in `parts` pieces of
    `piece` bytes, evenly spaced from the beginning, and in the last `end` bytes. All of them, if
    the file is no larger than that."""
    names = "|".join(kind.kind for kind in kinds)
    marked = re.compile(f'"kind":"(?:{names})"'.encode()).search
    try:
        with file_inside(*inside(path)) as file:
            size = os.fstat(file.fileno()).st_size
            lines: list[bytes] = []
            if size <= parts * piece + end:
                lines = file.read().split(b"\n")
            else:
                for i in range(parts):
                    at = (size - end - piece) * i // max(parts - 1, 1)
                    file.seek(at)
                    lines += file.read(piece).split(b"\n")[1 if at else 0:-1]
                file.seek(size - end)
                lines += file.read().split(b"\n")[1:]
    except OSError:
        return
    for line in lines:
        if marked(line):
            event = event_in(line)
            if isinstance(event, kinds):
                yield event


def _line_at(text: mmap.mmap, at: int, first: int = 0) -> tuple[int, int, Event | None]:
    """The line around the byte `at`, of which nothing before `first` is read: where it begins and
    ends, and its event, if it has one."""
    begin = text.rfind(b"\n", first, at) + 1 or first
    stop = text.find(b"\n", at)
    end = stop if stop >= 0 else len(text)
    return begin, end, event_in(text[begin:end]) if end - begin <= Tail.MAX_LINE else None


def event_in(line: bytes) -> Event | None:
    """The event in a line; None if there is none, or its kind is not known."""
    try:
        return from_dict(_decoded(line.decode())) if line else None
    except (ValueError, RecursionError):
        return None
