"""Reading a rank's events by their digest, as far as there is one, and single steps again where
somebody looks closely."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from gpu_engine.common.files import file_inside
from gpu_engine.events import downsample
from gpu_engine.events.byte_ranges import Places
from gpu_engine.events.frequent import EventOrBatch, grouped
from gpu_engine.events.reader import Tail, event_in

_A_BLOCK = 512
"""About how many bytes of events take as long to read as a block."""


class DigestedTail(Tail):
    """A `Tail` whose batches stand for whole blocks of events where the digest has them. It
    remembers in which part of the file which steps are."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.places = Places()
        self._blocks: downsample.Blocks | None = downsample.Blocks(path)
        """None: there is no further block."""
        self._block_at: int | None = None
        """Where the next block begins, if that is known."""

    def read_many(self, limit: int = 1 << 20) -> list[EventOrBatch]:
        """As `Tail.read_many`, but blocks are read in place of what they stand for."""
        found: list[EventOrBatch] = []
        try:
            with file_inside(*self._inside) as file:
                while limit > 0 and self._is_new(file):
                    begin = self._begin()
                    told, cost = self._read_blocks(file) or self._read_lines(file, limit)
                    limit -= cost
                    self.places.note(begin, self._begin(), told)
                    found += told
        except OSError:
            pass
        return found

    def read_again(self, first: int, last: int, most: int) -> list[EventOrBatch] | None:
        """Every event around the steps from `first` to `last` that was read, one by one; None: they
        take more than `most` bytes."""
        pieces = self.places.of(first, last)
        if sum(end - begin for begin, end in pieces) > most:
            return None
        found: list[EventOrBatch] = []
        try:
            with file_inside(*self._inside) as file:
                for begin, end in pieces:
                    file.seek(begin)
                    found += grouped(file.read(end - begin).split(b"\n")[:-1], event_in)
        except OSError:
            return None
        return found

    def _begin(self) -> int:
        """Where the first line begins that was not read whole."""
        return self._offset - len(self._rest)

    def _is_new(self, file: BinaryIO) -> bool:
        known = self._inode is not None
        new = super()._is_new(file)
        if known and self._offset == 0:  # another file
            self.places, self._blocks = Places(), None
        return new

    def _read_blocks(self, file: BinaryIO) -> tuple[list[EventOrBatch], int] | None:
        """What the blocks from here on say, and what reading them cost, in bytes of events; None:
        no block begins here."""
        if self._blocks is None:
            return None
        blocks, self._block_at = self._blocks.next_blocks(file, self._offset)
        if self._block_at is None and len(blocks) < downsample.AT_ONCE:
            self._blocks = None
        if not blocks:
            return None
        self._offset = blocks[-1].end
        return [downsample.batch(blocks)], _A_BLOCK * len(blocks)

    def _read_lines(self, file: BinaryIO, limit: int) -> tuple[list[EventOrBatch], int]:
        """What the lines up to the next block say, and how many bytes were read."""
        if self._block_at is not None and self._offset < self._block_at:
            limit = min(limit, self._block_at - self._offset)
        before = self._offset
        lines = self._lines_of(file, limit)
        return grouped(lines, self._parse), self._offset - before
