"""Reading the new events of all ranks of a run, of long files by their digests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from gpu_engine.events.downsampled import DigestedTail
from gpu_engine.events.frequent import EventOrBatch
from gpu_engine.events.paths import events_path

BEHIND = 4096
"""Bytes of events, some twenty at least."""


class RunReader:
    """Reads the new events of all ranks of a run, in pieces of bounded size. Of a long file, the
    digest is read in place of what it stands for: then a step event in a batch may be several."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the run folder."""
        self._folder = folder
        self._tails: dict[int, DigestedTail] = {}
        self.cut_short = False
        """Whether the last `read` ended for lack of time, so that more may be there."""

    @property
    def ranks(self) -> list[int]:
        """The ranks whose files are read."""
        return list(self._tails)

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return sum(tail.skipped for tail in self._tails.values())

    @property
    def unknown(self) -> int:
        """How many unknown kinds and fields were left out so far: a newer version wrote them."""
        return sum(tail.unknown for tail in self._tails.values())

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
        new = {r: DigestedTail(events_path(self._folder, r)) for r in ranks if r not in self._tails}
        if new:  # a new dict, as `read` may be iterating over the old one in another thread
            self._tails = dict(sorted((self._tails | new).items()))

    def read_again(self, first: int, last: int, most: int) -> dict[int, list[EventOrBatch]] | None:
        """For each rank every event around the steps from `first` to `last`, as far as it was read,
        in the order of its file. None: they take more than `most` bytes, or can't be found."""
        found: dict[int, list[EventOrBatch]] = {}
        for rank, tail in self._tails.items():
            told = tail.read_again(first, last, most // len(self._tails))
            if told is None:
                return None
            found[rank] = told
        return found

    def read(self, seconds: float, piece: int = 1 << 18) -> list[tuple[int, list[EventOrBatch]]]:
        """The new events as (rank, events), reading `piece` bytes of each file in turn.

        Returns when nothing more is new, or when `seconds` have passed and something was found.
        """
        end = time.monotonic() + seconds
        fresh: list[tuple[int, list[EventOrBatch]]] = []
        while True:
            moved = False
            # The file read least so far goes first; else, with many ranks, the last would starve.
            for rank, tail in sorted(self._tails.items(), key=lambda pair: pair[1].offset):
                before = tail.offset
                events = tail.read_many(piece)
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
