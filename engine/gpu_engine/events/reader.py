"""Reading events files, also while ranks are writing them. The only parser of these files.

Each line is decoded by msgspec, into a struct whose types follow from the annotations in `schema`.
The last line of a live file may be half written: it is kept until the rest is there. Lines that do
not parse are left out and counted; unknown kinds and fields are left out, as a newer version wrote
them.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import msgspec

from gpu_engine.common.files import file_inside, size_of
from gpu_engine.events.paths import events_path, inside
from gpu_engine.events.schema import KINDS, Collective, Event, Other, Start, Step

END = 64 * 1024
"""How many bytes are read from the end of a large file, where only its end matters."""
BEHIND = 4096
"""Bytes of events, some twenty at least."""

_Kind = TypeVar("_Kind", bound=Event)

# --- a line -----------------------------------------------------------------------------------

_Time: Any = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_TIMES = frozenset({"t", "since", "began"})
"""Fields that are Unix seconds, of any kind of event."""
_Whole: Any = Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]
_RECORDS = {"Mapping[int, Other] | None": Other, "Mapping[int, Collective] | None": Collective}
"""Annotations of records by their numbers."""
_TYPES: dict[str, Any] = {
    "bool": bool, "int": _Whole, "int | None": _Whole | None,
    "float": float, "float | None": float | None, "str": str, "str | None": str | None,
    "tuple[str, ...]": tuple[str, ...], "tuple[float, ...]": tuple[float, ...],
    "tuple[int | None, ...]": tuple[_Whole | None, ...],
    "tuple[str | None, ...]": tuple[str | None, ...],
    "tuple[float | None, ...]": tuple[float | None, ...]}
"""The type for each annotation, which is a text; an int is a whole number that fits."""
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class BadEvent(ValueError):
    """A line that is not an event, or has a field of a wrong type."""


class _Line(msgspec.Struct):
    kind: str


_ERRORS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def decoded(line: bytes) -> Event | None:
    """The event in a line; None if its kind is not known here. Raises BadEvent if the line is not
    an event or a field has a wrong type."""
    try:
        return _decoded(line)
    except _ERRORS as err:
        with contextlib.suppress(*_ERRORS):
            if msgspec.json.decode(line, type=_Line).kind not in KINDS:
                return None
        if b"\\ud" in line.lower():
            # A lone surrogate, as in a name that is no UTF-8: JSON may have it, msgspec takes none.
            with contextlib.suppress(*_ERRORS):
                text = json.dumps(json.loads(line), ensure_ascii=False)
                return _decoded(text.encode(errors="replace"))
        raise BadEvent(str(err)) from None


def _decoded(line: bytes) -> Event:
    decode, shapes = _decoder()
    record = decode(line)
    cls, records, named = shapes[type(record)]
    values = msgspec.structs.asdict(record)
    for name, of in records.items():
        if values[name]:
            values[name] = {number: of(**msgspec.structs.asdict(one))
                            for number, one in values[name].items()}
    if named:
        each = msgspec.json.decode(line, type=dict[str, Any])
        values[named] = {name: _number(value) for name, value in each.items()
                         if name not in values and name != "kind"
                         and (value is None or _number(value) is not None)}
    event = object.__new__(cls)  # `t` is no argument of the class
    object.__setattr__(event, "__dict__", values)
    return event


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _WORDS.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@cache
def _decoder() -> tuple[Callable[[bytes], msgspec.Struct], dict[type, tuple[type, dict, str]]]:
    """The decoder of every kind; and for each of its structs the class of the event, the classes of
    fields with records by their numbers, and the field of type `Named`, whose values stand beside
    the other fields ("": there is none)."""
    shapes: dict[type, tuple[type, dict, str]] = {}
    for cls in KINDS.values():
        kinds = {field.name: str(field.type) for field in fields(cls)}
        shapes[_struct_of(cls, cls.kind)] = (
            cls, {name: _RECORDS[kind] for name, kind in kinds.items() if kind in _RECORDS},
            next((name for name, kind in kinds.items() if kind == "Named"), ""))
    # Not strict: then numbers that are not finite may be words.
    every: Any = Union[tuple(shapes)]  # noqa: UP007  # there is no other way to make one
    return msgspec.json.Decoder(every, strict=False).decode, shapes


def _struct_of(cls: type, tag: str | None = None) -> type[msgspec.Struct]:
    """A struct with the fields of a class of `schema`, their types and defaults. `tag`: the value
    of `kind`."""
    found: list[Any] = []
    for field in fields(cls):
        kind = str(field.type)
        if kind == "Named":
            continue
        if kind in _RECORDS:
            of = dict[_Whole, _struct_of(_RECORDS[kind])] | None
        elif kind in _TYPES:
            of = _TYPES[kind]
            if field.name in _TIMES:
                of = _Time | None if kind.endswith("None") else _Time
        else:
            raise TypeError(f"{cls.__name__}.{field.name}: no check for fields of type {kind}")
        if field.default is not MISSING:
            found.append((field.name, of, field.default))
        else:  # one that may be unknown may be missing
            found.append((field.name, of, None) if kind.endswith("None") else (field.name, of))
    return msgspec.defstruct(cls.__name__, sorted(found, key=len), gc=False, tag=tag,
                             tag_field=tag and "kind")


def _event_in(line: bytes) -> Event | None:
    """The event in a line; None if there is none, or its kind is not known."""
    try:
        return decoded(line)
    except BadEvent:
        return None


# --- a file -----------------------------------------------------------------------------------


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
        """How many lines did not parse so far."""
        self.offset = 0
        """How many bytes of the file have been read."""
        self._inode: int | None = None
        self._rest = b""

    def size(self) -> int:
        """The file's size now, in bytes; 0 if it does not exist."""
        return size_of(self.path)

    def skip(self, keep: int = 0) -> None:
        """Leave out what is in the file now but for its last `keep` bytes; read those, of which the
        first may be the end of a line, and what is added later."""
        try:
            stat = self.path.lstat()
        except OSError:
            return
        begin = max(stat.st_size - keep, 0)
        if not keep or stat.st_ino != self._inode or begin > self.offset:
            self._inode, self.offset, self._rest = stat.st_ino, begin, b""

    def read(self, limit: int = 1 << 20) -> list[Event]:
        """The events that were completed since the last call. Reads at most `limit` bytes."""
        try:
            with file_inside(*self._inside) as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self.offset:  # another file
                    self._inode, self.offset, self._rest = stat.st_ino, 0, b""
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return []
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self.MAX_LINE:
            self._rest = b""
            self.skipped += 1
        events: list[Event] = []
        for line in lines:
            try:
                if line and not line.isspace() and (event := decoded(line)) is not None:
                    events.append(event)
            except BadEvent:
                self.skipped += 1
        return events


def backwards(path: Path, *kinds: type[_Kind], within: int | None = None) -> Iterator[_Kind]:
    """The events of these kinds, from the last in the file to the first. Reads no more of the file
    than the caller consumes. `within`: how many bytes before the end to look at; None: all."""
    marked = _marked(kinds)
    try:
        with file_inside(*inside(path)) as file, \
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            end = len(text)
            first = 0 if within is None else max(0, end - within)
            while end > first:
                begin = max(text.rfind(b"\n", first, end - 1) + 1, first)
                if end - begin <= Tail.MAX_LINE and marked(text, begin, end):
                    event = _event_in(text[begin:end])
                    if isinstance(event, kinds):
                        yield event
                end = begin
    except (OSError, ValueError):  # ValueError: an empty file can't be mapped
        return


def attempts(path: Path) -> Iterator[tuple[int, int]]:
    """(number, first step) of each attempt in the file that has done a step, in order. Other lines
    are not read, only looked through."""
    begun: Start | None = None
    try:
        with file_inside(*inside(path)) as file:
            while line := file.readline(Tail.MAX_LINE):
                if b'"kind":"start"' in line or (begun is not None and b'"kind":"step"' in line):
                    event = _event_in(line)
                    if isinstance(event, Start):
                        begun = event
                    elif isinstance(event, Step) and event.n and begun is not None:
                        yield begun.attempt or 1, max(event.step - event.n + 1, 0)
                        begun = None
    except OSError:
        return


def sample(path: Path, *kinds: type[Event], parts: int, piece: int = 2048,
           end: int = 8192) -> Iterator[Event]:
    """Events of these kinds in order, each at most once: those on whole lines in `parts` pieces of
    `piece` bytes, evenly spaced from the beginning, and in the last `end` bytes. All of them, if
    the file is no larger than that."""
    marked = _marked(kinds)
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
        if marked(line) and isinstance(event := _event_in(line), kinds):
            yield event


def _marked(kinds: Iterable[type[Event]]) -> Callable[..., object]:
    """Tells of a line whether it may hold an event of these kinds."""
    return re.compile(f'"kind":"(?:{"|".join(kind.kind for kind in kinds)})"'.encode()).search


# --- all ranks of a run -------------------------------------------------------------------------


class RunReader:
    """Reads the new events of all ranks of a run, in pieces of bounded size."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[int, Tail] = {}
        self.cut_short = False
        """Whether the last `read` ended for lack of time, so that more may be there."""

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return sum(tail.skipped for tail in self._tails.values())

    def share(self) -> float:
        """The share of the files' bytes that has been read, 0 to 1."""
        each = [(tail.offset, tail.size()) for tail in self._tails.values()]
        there = sum(size for _, size in each)
        return sum(min(offset, size) for offset, size in each) / there if there else 1.0

    def behind(self) -> bool:
        """Whether the last `read` left much of some file for the next one: what was read of it is
        of the past."""
        return self.cut_short and any(tail.size() - tail.offset > BEHIND
                                      for tail in self._tails.values())

    def add(self, ranks: Iterable[int]) -> None:
        """Read the files of these ranks too. A rank that is read already keeps its place."""
        new = {r: Tail(events_path(self._folder, r)) for r in ranks if r not in self._tails}
        if new:  # a new dict, as `read` may be iterating over the old one in another thread
            self._tails = dict(sorted((self._tails | new).items()))

    def read(self, seconds: float, piece: int = 1 << 18) -> list[tuple[int, list[Event]]]:
        """The new events as (rank, events), reading `piece` bytes of each file in turn.

        Returns when nothing more is new, or when `seconds` have passed and something was found.
        """
        end = time.monotonic() + seconds
        fresh: list[tuple[int, list[Event]]] = []
        while True:
            moved = False
            # The file read least so far goes first; else, with many ranks, the last would starve.
            for rank, tail in sorted(self._tails.items(), key=lambda pair: pair[1].offset):
                before = tail.offset
                events = tail.read(piece)
                if events:
                    fresh.append((rank, events))
                # All of a piece was there: there may be more. A long line gives no event at first.
                moved = moved or tail.offset - before >= piece
                if fresh and time.monotonic() > end:
                    self.cut_short = True
                    return fresh
            if not moved:
                self.cut_short = False
                return fresh
