"""Reads a run's events as rows, in bounded memory, also while the ranks are writing them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.events import schema
from gpu_engine.events.paths import devices_paths, events_path, ranks_with_files
from gpu_engine.events.reader import Tail, attempts
from gpu_engine.export.merge import DeviceReadings, Merge, RankSteps, greatest, is_memory
from gpu_engine.export.row import Row

_PIECE = 1 << 16
"""Bytes that are read of a file at a time."""
PATIENCE = 5.0
"""Seconds for which the other ranks of a live run wait for a rank that has written no step."""


class Source:
    """The rows of one run, from the first on."""

    def __init__(self, run: Path, rank: int | None = None) -> None:
        """`run`: the run folder; `rank`: the only rank to read; None: all."""
        self._run, self._only = run, rank
        self._ranks: dict[int, RankSteps] = {}
        self._tails: dict[int, Tail] = {}
        self._devices: dict[str | None, tuple[Tail, DeviceReadings]] = {}
        self._readings: list[DeviceReadings] = []
        self.begins: dict[int, int] = {}
        """Attempt after the first → its first step, of those that had begun when the reading
        began."""
        self._absent: set[int] = set()
        """Ranks that nobody waits for until they write a step."""
        self._waiting: dict[int, float] = {}
        """Rank that others wait for → since when, monotonic time."""
        self._find_files()
        for tail in self._tails.values():
            for number, step in attempts(tail.path):
                if number > 1:
                    self.begins[number] = min(step, self.begins.get(number, step))
        self._merge = Merge(self._ranks, self._readings, self._lost)

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return sum(tail.skipped for tail in self._tails.values())

    @property
    def late(self) -> int:
        """How many steps of a rank came when those of the others had been exported."""
        return self._merge.late

    def rows(self, *, live: bool = False) -> Iterator[Row]:
        """The rows that can be made now. `live`: the ranks may go on, so a step waits for those
        that have not written it yet; otherwise everything that is there is made rows of."""
        self._find_files()
        exhausted: set[int] = set()
        """Ranks whose files were read to their ends. Each end is seen once: other files may grow
        for ever."""
        over: set[str | None] = set()
        while True:
            place = self._merge.advance()
            lacking = self._merge.lacking()
            unread = [r for r in lacking if r not in exhausted]
            if unread:  # also of those that nobody waits for: they may have gone on
                exhausted.update(r for r in unread if not self._read(r))
                continue
            if live:
                lacking = [r for r in lacking if r not in self._absent]
            if place is None or (live and lacking and self._hold(lacking)):
                return
            self._read_devices(self._merge.time, over)
            row = self._merge.row()
            if row is not None:
                yield row

    def final_rows(self) -> Iterator[Row]:
        """At the end: the rows that are left, of which the last has what was read of memory and
        devices after it as well."""
        last: Row | None = None
        for row in self.rows():
            if last is not None:
                yield last
            last = row
        self._read_devices(float("inf"), set())
        row = self._merge.rest()
        if last is not None and row is not None:
            values = dict(row.values)
            greatest(values, {n: v for n, v in last.values.items() if is_memory(n)})
            row = replace(last, values=values | {
                n: v for n, v in last.values.items() if not is_memory(n)})
        final = row or last
        if final is not None:
            yield final

    def _hold(self, lacking: Sequence[int]) -> bool:
        """Whether to wait for these ranks, which have not written what the others have."""
        now = time.monotonic()
        self._waiting = {r: self._waiting.get(r, now) for r in lacking}
        for rank, since in self._waiting.items():
            if now - since >= PATIENCE:
                self._absent.add(rank)
        return not self._absent.issuperset(lacking)

    def _lost(self, attempt: int) -> int | None:
        return min((step for number, step in self.begins.items() if number > attempt),
                   default=None)

    def _find_files(self) -> None:
        """Look for files that have appeared."""
        found = ranks_with_files(self._run) if self._only is None else [self._only]
        for rank in found:
            if rank not in self._tails:
                self._tails[rank] = Tail(events_path(self._run, rank))
                self._ranks[rank] = RankSteps()
        for host, path in devices_paths(self._run).items():
            if host not in self._devices:
                self._devices[host] = (Tail(path), DeviceReadings(host))
                self._readings.append(self._devices[host][1])

    def _read(self, rank: int) -> bool:
        """Read more of a rank's file. Returns whether there was more."""
        tail, one = self._tails[rank], self._ranks[rank]
        offset, upto = tail.offset, one.upto
        one.fold(tail.read(_PIECE))
        if one.upto != upto:
            self._waiting.pop(rank, None)
            self._absent.discard(rank)
        return tail.offset != offset

    def _read_devices(self, t: float, over: set[str | None]) -> None:
        """Read the devices' figures up to the time `t`. `over`: the hosts whose file was read to
        its end."""
        for host, (tail, readings) in self._devices.items():
            while host not in over and readings.upto < t:
                offset = tail.offset
                for event in tail.read(_PIECE):
                    if isinstance(event, schema.Devices):
                        readings.add(event)
                if tail.offset == offset:
                    over.add(host)
