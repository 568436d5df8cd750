"""A run as rows of named values, one for each step: reads the events of its ranks, in bounded
memory and also while they are written, and merges them.

A row is made of the steps of the lowest rank that has them: one step, or those of which that rank
has recorded only the mean. The other ranks count with the mean of the same steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from gpu_engine.events import schema
from gpu_engine.events.paths import devices_paths, events_path, ranks_with_files
from gpu_engine.events.reader import Tail, attempts
from gpu_engine.events.schema import Event
from gpu_engine.export.target import Row

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


MOST_READINGS = 1024
"""Readings that wait for their row; of more, the greatest memory is kept."""
LOSS = "train/loss"


class Place(NamedTuple):
    """Where in the training something happened. Places are in the order of the training."""

    attempt: int
    returns: int
    """How often the rank has gone back to an earlier step within the attempt."""
    step: int


class Piece(NamedTuple):
    """Consecutive steps of a rank, the `first` to the `last`, of which the mean loss is known."""

    place: Place
    """Of the first."""
    last: int
    t: float
    """When the last one ended, Unix seconds."""
    loss: float | None
    lo: float | None
    hi: float | None
    event: schema.Step | None
    """The event that ends with these steps; None if it goes on after them."""


class Named(NamedTuple):
    """Values with names that belong to a step."""

    place: Place
    t: float
    values: dict[str, float]


class Reading(NamedTuple):
    """The rank's memory at one moment, in bytes; of several GPUs the fullest one's."""

    t: float
    values: dict[str, float]


class RankSteps:
    """The events of one rank, taken apart. What was merged is taken from the left of `pieces`,
    `named` and `memory`."""

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.named: deque[Named] = deque()
        self.memory: deque[Reading] = deque()
        self.upto: Place | None = None
        """The place up to which everything is known: that of the newest step; of a rank without
        steps, that of the newest value."""
        self.apart = False
        """Whether it is a further process that trains as a rank of which another is counted."""
        self._attempt, self._returns = 1, 0
        self._last = -1
        self._stepped = False
        self._t: float | None = None
        """When the last step event of this attempt was written, Unix seconds."""

    def fold(self, events: Iterable[Event]) -> None:
        """Take in events, in the order of the rank's file."""
        for event in events:
            if isinstance(event, schema.Step):
                self._step(event)
            elif isinstance(event, schema.Memory):
                self._memory(event)
            elif isinstance(event, schema.Metric):
                self._named(event.step, event.t, {f"log/{n}": v for n, v in event.values.items()})
            elif isinstance(event, schema.Eval):
                self._named(event.step, event.t, {f"eval/{n}": v for n, v in event.values.items()})
            elif isinstance(event, schema.Start):
                self._attempt, self._returns, self._last = event.attempt or 1, 0, -1
                self._t, self.apart = None, event.process is not None

    def _step(self, event: schema.Step) -> None:
        if event.n:
            self._steps(event)
        others: dict[str, float | None] = {
            f"{LOSS}[{i}]": other.loss for i, other in (event.others or {}).items()}
        if others:
            self._named(event.step, event.t, others)

    def _steps(self, event: schema.Step) -> None:
        losses = event.losses
        many = len(losses) or max(event.n, 1)
        first = max(event.step - many + 1, 0)
        if first <= self._last:
            self._returns += 1
        began = event.t if self._t is None else min(self._t, event.t)
        self._last, self._t, self._stepped = event.step, event.t, True
        self.upto = Place(self._attempt, self._returns, event.step)
        if not losses:
            self.pieces.append(Piece(Place(self._attempt, self._returns, first), event.step,
                                     event.t, event.loss, event.loss_min, event.loss_max, event))
            return
        for i, loss in enumerate(losses, 1):  # spread evenly over the time since the event before
            step = event.step - many + i
            if step >= 0:
                self.pieces.append(Piece(
                    Place(self._attempt, self._returns, step), step,
                    began + (event.t - began) * i / many, loss, None, None,
                    event if i == many else None))

    def _named(self, step: int | None, t: float, values: dict[str, float | None]) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        if not known:
            return
        place = Place(self._attempt, self._returns, max(self._last, 0) if step is None else step)
        self.named.append(Named(place, t, known))
        if not self._stepped and (self.upto is None or place > self.upto):
            self.upto = place

    def _memory(self, event: schema.Memory) -> None:
        values: dict[str, float] = {}
        for name, each in (("memory/gpu_allocated", event.gpu_allocated),
                           ("memory/gpu_reserved", event.gpu_reserved),
                           ("memory/gpu_peak", event.gpu_peak), ("memory/host", (event.rss,))):
            known = [b for b in each if b is not None]
            if known:
                values[name] = float(max(known))
        if len(self.memory) == MOST_READINGS:
            greatest(values, self.memory.popleft().values)
        self.memory.append(Reading(event.t, values))


def greatest(into: dict[str, float], values: dict[str, float]) -> None:
    """Keep the greatest value of each name in `into`."""
    for name, value in values.items():
        into[name] = max(into.get(name, value), value)


def is_memory(name: str) -> bool:
    """Whether the greatest of several values of this name counts."""
    return name.startswith("memory/") or name.endswith("/memory_used")


class DeviceReadings:
    """The figures of one machine's devices that were read and not yet put into a row."""

    def __init__(self, host: str | None = None) -> None:
        """`host`: its name, which then stands before its devices'; None: this machine."""
        self._before = f"device/{host}:" if host else "device/"
        self._told: deque[schema.Devices] = deque(maxlen=MOST_READINGS)

    @property
    def upto(self) -> float:
        """The time of the newest reading, Unix seconds; -inf without one."""
        return self._told[-1].t if self._told else float("-inf")

    def add(self, event: schema.Devices) -> None:
        self._told.append(event)

    def before(self, t: float) -> dict[str, float]:
        """The means of all readings up to `t`, which are then forgotten; of memory the greatest."""
        total: dict[str, list[float]] = {}
        while self._told and self._told[0].t <= t:
            event = self._told.popleft()
            for what in ("utilization", "memory_used", "temperature", "power"):
                for id, value in zip(event.ids, getattr(event, what), strict=False):
                    if value is not None:
                        total.setdefault(f"{self._before}{id}/{what}", []).append(float(value))
        return {name: max(each) if is_memory(name) else sum(each) / len(each)
                for name, each in total.items()}


class Merge:
    """Makes rows from the ranks' steps. Those in `ranks` may be added to at any time."""

    def __init__(self, ranks: dict[int, RankSteps], devices: Iterable[DeviceReadings],
                 lost: Callable[[int], int | None]) -> None:
        """`lost`: attempt → the first of its steps that a later attempt has done again, if that is
        known already."""
        self._all, self._devices, self._lost = ranks, devices, lost
        self._counted = ranks
        """Those of which the mean is made."""
        self._latest: dict[int, schema.Step] = {}
        """Rank → its last step event, for what is summed over ranks."""
        self._done: Place | None = None
        """The last place whose steps are in a row."""
        self._place: Place | None = None
        self._lead: Piece | None = None
        """What the next row is made of; no piece: only of values with names."""
        self._at: Row | None = None
        self.late = 0
        """Steps of ranks that came when their row had been made."""

    def advance(self) -> Place | None:
        """The place of the next row; None if there is nothing to make one of."""
        self._counted = self._all
        if any(one.apart for one in self._all.values()):
            self._counted = {rank: one for rank, one in self._all.items() if not one.apart}
        self._drop_late()
        self._lead = None
        named = None
        for one in self._counted.values():
            if one.pieces and (self._lead is None or one.pieces[0].place < self._lead.place):
                self._lead = one.pieces[0]
            if one.named and (named is None or one.named[0].place < named):
                named = one.named[0].place
        place = None
        if self._lead is not None:
            place = self._lead.place._replace(step=self._lead.last)
        if named is not None and (place is None or named < place):
            self._lead, place = None, named
        self._place = place
        return place

    @property
    def time(self) -> float:
        """When the step of the next row ended, after `advance`; -inf if it is of no step."""
        return self._lead.t if self._lead is not None else float("-inf")

    def lacking(self) -> list[int]:
        """After `advance`: the ranks of which more must be read before the row can be made; all, if
        there is none yet."""
        place = self._place
        return [rank for rank, one in self._counted.items()
                if place is None or one.upto is None or one.upto <= place]

    def row(self) -> Row | None:
        """After `advance`: the next row, of what is there of all ranks. None if it is of lost work,
        or of nothing that is known."""
        place, lead = self._place, self._lead
        if place is None:
            return None
        values, t = self._named_at(place)
        if lead is not None:
            if self._done is not None and place.attempt != self._done.attempt:
                self._latest.clear()
            t, self._done = lead.t, place
            values = self._losses(place) | self._of_steps(place, lead.event) | values
        lost = self._lost(place.attempt)
        if lost is not None and place.step >= lost:
            self._readings(t)  # they are of the lost work too
            return None
        if lead is not None:
            values |= self._readings(t)
        if not values:
            return None
        self._at = Row(place.step, t, place.attempt, values)
        return self._at

    def rest(self) -> Row | None:
        """At the end: the last row with nothing but what was read of memory and devices after it;
        None where nothing was."""
        values = self._readings(float("inf"))
        return replace(self._at, values=values) if values and self._at is not None else None

    # --- the next place ---------------------------------------------------------------------

    def _drop_late(self) -> None:
        """Leave out pieces of steps of which a row was made without them."""
        if self._done is None:
            return
        for one in self._counted.values():
            while one.pieces and one.pieces[0].place <= self._done:
                piece = one.pieces.popleft()
                over = piece.last - self._done.step
                same = piece.place[:2] == self._done[:2]
                self.late += 1
                if same and over > 0:
                    one.pieces.appendleft(piece._replace(
                        place=piece.place._replace(step=self._done.step + 1)))
                    break

    # --- a row ------------------------------------------------------------------------------

    def _losses(self, place: Place) -> dict[str, float]:
        """The mean of the ranks' losses up to `place`, and the least and greatest of them."""
        means: list[float] = []
        lo: list[float] = []
        hi: list[float] = []
        for rank, one in self._counted.items():
            total, many = 0.0, 0
            while one.pieces and one.pieces[0].place <= place:
                piece = one.pieces.popleft()
                until = min(piece.last, place.step)
                n = until - piece.place.step + 1
                if piece.loss is not None:
                    total, many = total + piece.loss * n, many + n
                    for value in (piece.loss, piece.lo, piece.hi):
                        if value is not None and isfinite(value):
                            lo.append(value)
                            hi.append(value)
                if piece.event is not None and until == piece.last:
                    self._latest[rank] = piece.event
                if until < piece.last:
                    one.pieces.appendleft(
                        piece._replace(place=piece.place._replace(step=until + 1)))
                    break
            if many:
                means.append(total / many)
        if not means:
            return {}
        found = {LOSS: sum(means) / len(means)}
        if len(lo) > 1:
            found |= {f"{LOSS}_min": min(lo), f"{LOSS}_max": max(hi)}
        return found

    def _of_steps(self, place: Place, event: schema.Step | None) -> dict[str, float]:
        """What the lead's step event carries beside losses; of what is each rank's own, the sum or
        the mean over the latest events of all ranks, once every rank has one."""
        if event is None:
            return {}
        there = [rank for rank, one in self._counted.items()
                 if rank in self._latest or (one.pieces
                                             and one.pieces[0].place.attempt == place.attempt)]
        each = [self._latest[rank] for rank in there if rank in self._latest]
        if len(each) < len(there):
            each = []
        rates = [e.samples_per_s for e in each if e.samples_per_s is not None]
        waits = [e.data_wait for e in each if e.data_wait is not None]
        told = {"train/lr": event.lr, "train/epoch": event.epoch, "train/skipped": event.skipped,
                "train/grad_norm": event.grad_norm,
                "train/samples_per_s": sum(rates) if rates else None,
                "train/data_wait": sum(waits) / len(waits) if waits else None}
        return {name: float(value) for name, value in told.items() if value is not None}

    def _named_at(self, place: Place) -> tuple[dict[str, float], float]:
        """The values with names at `place`, the mean over the ranks that have told one, and when
        the last was told."""
        told: dict[str, dict[int, float]] = {}
        t = 0.0
        for rank, one in self._counted.items():
            while one.named and one.named[0].place <= place:
                event = one.named.popleft()
                t = max(t, event.t)
                for name, value in event.values.items():
                    told.setdefault(name, {})[rank] = value
        return {name: sum(each.values()) / len(each) for name, each in told.items()}, t

    def _readings(self, t: float) -> dict[str, float]:
        """Memory and devices since the row before, up to `t`."""
        found: dict[str, float] = {}
        for one in self._counted.values():
            while one.memory and one.memory[0].t <= t:
                greatest(found, one.memory.popleft().values)
        for readings in self._devices:
            found |= readings.before(t)
        return found
