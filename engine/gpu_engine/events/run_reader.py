"""Reading the new events of all ranks of a run, of long files by their digests, and single steps
again where somebody looks closely."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gpu_engine.common.files import file_inside
from gpu_engine.events import downsample
from gpu_engine.events.frequent import EventOrBatch, grouped
from gpu_engine.events.paths import events_path
from gpu_engine.events.reader import Tail, event_in
from gpu_engine.events.schema import Event, Step

BEHIND = 4096
"""Bytes of events, some twenty at least."""
AT_ONCE = 64
"""The most blocks of a digest that are read at once."""
_A_BLOCK = 512
"""About how many bytes of events take as long to read as a block."""
_PIECE = 1 << 16
"""Bytes of a file that are told apart, at least."""


class Piece(NamedTuple):
    """A piece of the file, in bytes, and the steps that its events are of."""

    begin: int
    end: int
    first: int
    last: int


class DigestedTail(Tail):
    """A `Tail` whose batches stand for whole blocks of events where the digest has them. It
    remembers in which part of the file which steps are."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pieces: list[Piece] = []
        """In the order of the file. Steps may be in several of them: a later attempt goes back to
        earlier steps."""
        self._blocks = downsample.blocks(path)
        self._block: downsample.Block | None = None
        """The next of them; None: there is none."""

    def read_many(self, limit: int = 1 << 20) -> list[EventOrBatch]:
        """As `Tail.read_many`, but blocks are read in place of what they stand for."""
        found: list[EventOrBatch] = []
        try:
            with file_inside(*self._inside) as file:
                while limit > 0 and self._is_new(file):
                    begin = self._offset - len(self._rest)
                    told, cost = self._read_blocks(file) or self._read_lines(file, limit)
                    limit -= cost
                    self._note(begin, self._offset - len(self._rest), told)
                    found += told
        except OSError:
            pass
        return found

    def read_again(self, first: int, last: int, most: int) -> list[EventOrBatch] | None:
        """Every event around the steps from `first` to `last` that was read, one by one; None: they
        take more than `most` bytes."""
        pieces = [p for p in list(self._pieces) if p.first <= last and p.last >= first]
        if sum(piece.end - piece.begin for piece in pieces) > most:
            return None
        found: list[EventOrBatch] = []
        try:
            with file_inside(*self._inside) as file:
                for piece in pieces:
                    file.seek(piece.begin)
                    lines = file.read(piece.end - piece.begin).split(b"\n")
                    found += grouped(lines[:-1], event_in)
        except OSError:
            return None
        return found

    def _is_new(self, file: BinaryIO) -> bool:
        known = self._inode is not None
        new = super()._is_new(file)
        if not known:
            self._block = next(self._blocks, None)
        elif self._offset == 0:  # another file
            self._pieces, self._block = [], None
        return new

    def _read_blocks(self, file: BinaryIO) -> tuple[list[EventOrBatch], int] | None:
        """What the blocks from here on say, and what reading them cost, in bytes of events; None:
        no block begins here."""
        blocks: list[downsample.Block] = []
        end = self._offset
        while self._block is not None and self._block.begin <= end and len(blocks) < AT_ONCE:
            if self._block.begin == end:  # one that begins before is of what was read already
                blocks.append(self._block)
                end = self._block.end
            self._block = next(self._blocks, None)
        if not blocks:
            return None
        if not (blocks[0].fits(file) and blocks[-1].fits(file)):
            self._block = None
            return None
        self._offset = end
        return [downsample.batch(blocks)], _A_BLOCK * len(blocks)

    def _read_lines(self, file: BinaryIO, limit: int) -> tuple[list[EventOrBatch], int]:
        """What the lines up to the next block say, and how many bytes were read."""
        if self._block is not None:
            limit = min(limit, self._block.begin - self._offset)
        before = self._offset
        lines = self._lines_of(file, limit)
        return grouped(lines, self._parse), self._offset - before

    def _note(self, begin: int, end: int, told: Sequence[EventOrBatch]) -> None:
        """Note that these events are in the piece of the file from `begin` to `end`."""
        steps = [e for one in told for e in (
            one.steps if not isinstance(one, Event) else [one] if isinstance(one, Step) else [])]
        if not steps:
            return
        first, last = min(e.step - max(e.n, 1) + 1 for e in steps), max(e.step for e in steps)
        before = self._pieces[-1] if self._pieces else None
        if before is not None and end - before.begin <= _PIECE:
            self._pieces[-1] = Piece(before.begin, end, min(first, before.first),
                                     max(last, before.last))
        else:
            self._pieces.append(Piece(begin, end, first, last))


class RunReader:
    """Reads the new events of all ranks of a run, in pieces of bounded size. Of a long file, the
    digest is read in place of what it stands for: then a step event in a batch may be several."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[int, DigestedTail] = {}
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
