"""What a run's files gain, sent as it comes, from wherever the other side has got to."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator

from gpu_engine.common.files import file_inside
from gpu_engine.events.paths import FOLDER
from gpu_engine.places.verbs import Followed
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.reach.files import At
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run

LOOK = 0.1
"""Seconds between two polls while nothing comes."""
_ALL_FILES = 10
"""Looks after which it is seen whether there are new files."""


def lines(run: Run, at: Iterable[At] = (), ranks: tuple[int, ...] | None = None, node: int = 0
          ) -> Iterator[dict[str, object]]:
    """What of a run is new from there on, until it has ended: how it is, whenever that changes, and
    the bytes that its files gain, of these ranks and this node alone (`ranks` None: of all)."""
    sender, goes_on = _Sender(run, at, ranks, node), Followed(run)
    told = full = told_full = None
    looks = 0
    while True:
        live = goes_on(run.state())
        state = run.state()  # before the files: what was written before the end is then there
        if looks % _ALL_FILES == 0 or state != told:
            sender.find()
            full = disk_room.silence(run.path)
        if live and (state, full) != (told, told_full):
            yield {"kind": "state"} | state.to_dict() | {"silence": full}
            told, told_full = state, full
        moved = False
        for piece in sender.pieces():
            moved = True
            yield piece
        if not moved and not live:
            yield {"kind": "ended"} | state.to_dict()
            return
        if not moved:
            time.sleep(LOOK)
        looks += 1


class _Sender:
    def __init__(self, run: Run, at: Iterable[At], ranks: tuple[int, ...] | None = None,
                 node: int = 0) -> None:
        """`ranks`: those whose files are wanted; None: all. `node`: the one whose log is."""
        self._run, self._ranks, self._node = run, ranks, node
        self._at: dict[str, int | None] = {
            a.name: a.offset if _same(run, a) else None for a in at if files.here(a.name)}
        """How far each file was sent; None: the next piece begins it anew."""

    def find(self) -> None:
        """Files that have come. The events go first: they are what a screen shows."""
        names = [f"{FOLDER}/{n}" for n in _listed(self._run, FOLDER)] + _listed(self._run, "")
        # An earlier attempt may have had other ranks here.
        new = {name: 0 for name in names
               if files.here(name, ranks=self._ranks, node=self._node) is not None}
        self._at = dict(sorted((new | self._at).items(),
                               key=lambda pair: (not files.is_events(pair[0]), pair[0])))

    def pieces(self) -> Iterator[dict[str, object]]:
        """One of each file that has more."""
        for name, at in self._at.items():
            try:
                size = (self._run.path / name).lstat().st_size
                if size == at:
                    continue
                start = at is None or size < at
                at = 0 if at is None or start else at
                with file_inside(self._run.path, name) as file:
                    data = os.pread(file.fileno(), protocol.PIECE, at)
            except OSError:
                continue
            if data or start:
                self._at[name] = at + len(data)
                yield {"kind": "piece", "name": name, "offset": at, "start": start,
                       "text": data.decode("utf-8", "surrogateescape")}


def _same(run: Run, known: At) -> bool:
    """Whether the file holds before `known.offset` what the other side has there."""
    try:
        with file_inside(run.path, known.name) as file:
            data = os.pread(file.fileno(), known.checked, known.offset - known.checked)
    except OSError:
        return False
    return zlib.crc32(data) == known.crc


def _listed(run: Run, folder: str) -> list[str]:
    try:
        return sorted(os.listdir(run.path / folder))  # noqa: PTH208
    except OSError:
        return []
