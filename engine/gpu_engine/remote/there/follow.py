"""What a run's files gain, sent as it comes, from wherever the other side has got to."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_engine.common.files import file_inside
from gpu_engine.events.paths import FOLDER
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.reach.protocol import At, Piece
from gpu_engine.remote.there.main import Out
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run, State

LOOK = 0.1
"""Seconds between two polls while nothing comes."""
_ALL_FILES = 10
"""Looks after which it is seen whether there are new files."""


def follow(out: Out, run: Run, request: protocol.Follow) -> None:
    sender = _Sender(run, request.at, request.ranks, request.node)
    told: State | None = None
    full, told_full = None, None
    looks = 0
    while True:
        state = run.state()  # before the files: what was written before the end is then there
        if looks % _ALL_FILES == 0 or state != told:
            sender.find()
            full = disk_room.silence(run.path)
        if state.live and (state, full) != (told, told_full):
            out.send(protocol.Told(state, full))
            told, told_full = state, full
        moved = sender.send(out)
        if not moved and not state.live:
            out.send(protocol.Told(state))
            out.send(protocol.Done())
            return
        if not moved:
            out.pause(LOOK)
        looks += 1


@dataclass(slots=True)
class _Sent:
    """A file, and how far it was sent."""

    name: str
    offset: int = 0
    known: At | None = None
    """What the other side says that it has, until it was compared."""
    start: bool = False
    """Whether the next piece begins the file anew."""


class _Sender:
    def __init__(self, run: Run, at: Iterable[At], ranks: tuple[int, ...] | None = None,
                 node: int = 0) -> None:
        """`ranks`: those whose files are wanted; None: all. `node`: the one whose log is."""
        self._run, self._ranks, self._node = run, ranks, node
        self._files = {a.name: _Sent(a.name, a.offset, a) for a in at if files.of_run(a.name)}

    def find(self) -> None:
        """Files that have come. The events go first: they are what a screen shows."""
        names = [f"{FOLDER}/{n}" for n in _listed(self._run, FOLDER)] + _listed(self._run, "")
        for name in names:
            if files.of_run(name) and self._wanted(name) and name not in self._files:
                self._files[name] = _Sent(name)
        self._files = dict(sorted(self._files.items(),
                                  key=lambda pair: (not files.is_events(pair[0]), pair[0])))

    def _wanted(self, name: str) -> bool:
        """An earlier attempt may have had other ranks here."""
        return self._ranks is None \
            or files.here(name, "", self._ranks, self._node) is not None

    def send(self, out: Out) -> bool:
        """A piece of each file that has more; whether there was any."""
        moved = False
        for sent in self._files.values():
            piece = self._piece(sent)
            if piece is not None:
                out.send(piece)
                moved = True
        return moved

    def _piece(self, sent: _Sent) -> Piece | None:
        path = self._run.path / sent.name
        try:
            size = path.lstat().st_size
            if size == sent.offset and sent.known is None:
                return None
            with file_inside(self._run.path, sent.name) as file:
                if size < sent.offset or not _same(file.fileno(), sent.known):
                    sent.offset, sent.start = 0, True
                sent.known = None
                data = os.pread(file.fileno(), protocol.PIECE, sent.offset)
        except OSError:
            return None
        if not data and not sent.start:
            return None
        piece = Piece.of(sent.name, sent.offset, data, start=sent.start, size=size)
        sent.offset += len(data)
        sent.start = False
        return piece


def _same(fd: int, known: At | None) -> bool:
    """Whether the file holds before `known.offset` what the other side has there."""
    if known is None or not known.checked:
        return True
    return zlib.crc32(os.pread(fd, known.checked, known.offset - known.checked)) == known.crc


def _listed(run: Run, folder: str) -> list[str]:
    try:
        return sorted(os.listdir(run.path / folder))  # noqa: PTH208
    except OSError:
        return []
