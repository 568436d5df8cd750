"""A host's files, appended to the run's folder here from wherever they have got to.

What a file has here is the beginning of what it has there, so its size says from where to go on.
A log that was cut there is set aside here as well. What comes is bounded: a host can fill neither
this disk nor a file that is not its own.
"""

from __future__ import annotations

import errno
import os
import zlib
from contextlib import suppress
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.files import open_inside
from gpu_engine.events.paths import DEVICES, inside
from gpu_engine.remote.reach import files
from gpu_engine.remote.reach.files import At
from gpu_engine.remote.reach.protocol import BadMessage, Piece
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import disk_room

_CHECKED = 256
"""Bytes at the end of what is here that are compared with what is there."""
MOST_EVENTS = 8 << 30
"""Bytes of one rank's events."""
FLOOR = 512 << 20
"""Free bytes below which nothing of a host is written any more."""


class Mirror:
    """The files of `part`'s host in the run folder `run`. `log_limit`: bytes of a log before it is
    set aside, as the spec has it."""

    def __init__(self, run: Path, part: Part, log_limit: int) -> None:
        self.run, self._part = run, part
        self._limit = log_limit
        self._bases = {f"ranks/{b.rank:05d}.jsonl": b.bytes for b in part.bases}
        """Bytes at the beginning of a file that came from another host, before this one had that
        rank."""

    def at(self) -> tuple[At, ...]:
        """How far each file is here."""
        names = [f"node{self._part.node}.log", files.SUPERVISOR, DEVICES]
        names += [f"ranks/{rank:05d}{suffix}" for rank in self._part.ranks
                  for suffix in (".jsonl", ".log")]
        return tuple(at for name in names if (at := self._at(name)) is not None)

    def _at(self, name: str) -> At | None:
        try:
            fd = open_inside(*inside(self._path(name)))
        except OSError:
            return None
        try:
            size = os.fstat(fd).st_size
            own = max(size - self._bases.get(name, 0), 0)
            checked = min(own, _CHECKED)
            return At(name, own, checked, zlib.crc32(os.pread(fd, checked, size - checked)))
        finally:
            os.close(fd)

    def append(self, piece: Piece) -> None:
        """Append what came. Raises BadMessage for what the host has no business sending, or that
        does not go on where the file here ends; OSError where it can't be written."""
        path, data = self._path(piece.name), piece.data
        free = disk_room.of(self.run).free
        if free is not None and free - len(data) < FLOOR:
            raise OSError(errno.ENOSPC, f"less than {units.size(FLOOR)} would be free on the disk "
                                        f"of {self.run}")
        if piece.start:
            self._begin_anew(path, piece.name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = open_inside(*inside(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            own = size - self._bases.get(piece.name, 0)
            if piece.offset != own:
                raise BadMessage(f"{piece.name}: bytes from {piece.offset:,} on, and {own:,} are "
                                 "here")
            # A supervisor over there looks at its logs once a second.
            most = MOST_EVENTS if files.is_events(piece.name) else 4 * self._limit + (64 << 20)
            if size + len(data) > most:
                raise BadMessage(f"{piece.name}: more than {most:,} bytes")
            _write_all(fd, data, size)
        finally:
            os.close(fd)

    def _path(self, name: str) -> Path:
        """Where the file is here. Raises BadMessage."""
        found = files.here(name, self._part.host, self._part.ranks, self._part.node)
        if found is None:
            raise BadMessage(f"a file that is none of its: {name[:80]!r}")
        return self.run / found

    def _begin_anew(self, path: Path, name: str) -> None:
        base = self._bases.get(name, 0)
        with suppress(FileNotFoundError):
            if base:
                with os.fdopen(open_inside(*inside(path), os.O_WRONLY), "wb") as file:
                    file.truncate(base)
            elif files.is_events(name):
                path.unlink()
            else:
                path.replace(path.with_name(path.name + ".1"))


def _write_all(fd: int, data: bytes, size: int) -> None:
    """Whole or not at all: half of it would be followed by the same bytes again."""
    try:
        at = 0
        while at < len(data):
            at += os.write(fd, data[at:])
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise
