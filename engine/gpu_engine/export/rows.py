"""A run as rows of named values, one for each step: reads the events of its ranks in bounded
memory and merges them.

A row is made of the steps of the lowest rank that has them: one step, or those of which that rank
has recorded only the mean. The other ranks count with the mean of the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from gpu_engine.events import schema
from gpu_engine.events.paths import devices_paths, events_path, ranks_with_files
from gpu_engine.events.reader import Tail, attempts
from gpu_engine.events.schema import Event

_PIECE = 1 << 16
"""Bytes that are read of a file at a time."""
MOST_NAMES = 2000
"""Names of values; what a script logs under further names is left out."""
LOSS = "train/loss"


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one step, or of several of which only the mean was recorded."""

    step: int
    """The last of these steps."""
    t: float
    """When it ended, Unix seconds."""
    attempt: int
    values: Mapping[str, float]
    """Name → value. Values that are not known are left out; some may be NaN or infinite."""


class Source:
    """The rows of one run, from the first to the last step that is recorded now."""

    def __init__(self, run: Path, rank: int | None = None) -> None:
        """`run`: the run folder; `rank`: the only rank to read; None: all."""
        numbers = ranks_with_files(run) if rank is None else [rank]
        self._tails = {number: Tail(events_path(run, number)) for number in numbers}
        self._ranks = {number: RankSteps() for number in numbers}
        self._devices = [(Tail(path), DeviceReadings(host))
                         for host, path in devices_paths(run).items()]
        self.begins: dict[int, int] = {}
        """Attempt after the first → its first step."""
        for tail in self._tails.values():
            for number, step in attempts(tail.path):
                if number > 1:
                    self.begins[number] = min(step, self.begins.get(number, step))

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return sum(tail.skipped for tail in self._tails.values())

    def rows(self) -> Iterator[Row]:
        """All rows, once. The last one has what was read of memory and devices after it as well."""
        merge = Merge(self._ranks)
        ended: set[int] = set()
        """Ranks whose files were read to their ends. Each end is seen once: files may grow for
        ever."""
        last: Row | None = None
        while True:
            place = merge.advance()
            unread = [rank for rank in merge.lacking() if rank not in ended]
            if unread:
                ended.update(rank for rank in unread if not self._read(rank))
                continue
            if place is None:
                break
            row = merge.row()
            # Steps that a later attempt has done again are lost work, and so are their readings.
            lost = min((step for number, step in self.begins.items() if number > place.attempt),
                       default=None)
            if lost is not None and place.step >= lost:
                self._readings(merge.time if row is None else row.t)
                continue
            readings = self._readings(merge.time)
            if row is not None or readings:
                values = row.values if row is not None else {}
                if last is not None:
                    yield last
                last = Row(place.step, row.t if row is not None else merge.time, place.attempt,
                           {**values, **readings})
        if last is not None:
            values = dict(last.values)
            for name, value in self._readings(float("inf")).items():
                values[name] = max(values.get(name, value), value) if is_memory(name) \
                    else values.get(name, value)
            yield replace(last, values=values)

    def _read(self, rank: int) -> bool:
        """Read more of a rank's file. Returns whether there was more."""
        tail = self._tails[rank]
        before = tail.offset
        self._ranks[rank].fold(tail.read(_PIECE))
        return tail.offset != before

    def _readings(self, t: float) -> dict[str, float]:
        """Memory and devices since the row before, up to `t`: -inf for a row of no step."""
        values: dict[str, float] = {}
        for steps in self._ranks.values():
            while steps.memory and not steps.apart and steps.memory[0].t <= t:
                greatest(values, steps.memory.popleft().values)
        for tail, readings in self._devices:
            while readings.upto < t and not readings.ended:
                before = tail.offset
                for event in tail.read(_PIECE):
                    if isinstance(event, schema.Devices):
                        readings.add(event)
                readings.ended = tail.offset == before
            values |= readings.before(t)
        return values


MOST_READINGS = 1024
"""Readings that wait for their row; of more, the greatest memory is kept."""


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
        self._events: deque[schema.Devices] = deque(maxlen=MOST_READINGS)
        self.ended = False
        """Whether the file was read to its end."""

    @property
    def upto(self) -> float:
        """The time of the newest reading, Unix seconds; -inf without one."""
        return self._events[-1].t if self._events else float("-inf")

    def add(self, event: schema.Devices) -> None:
        self._events.append(event)

    def before(self, t: float) -> dict[str, float]:
        """The means of all readings up to `t`, which are then forgotten; of memory the greatest."""
        total: dict[str, list[float]] = {}
        while self._events and self._events[0].t <= t:
            event = self._events.popleft()
            for what in ("utilization", "memory_used", "temperature", "power"):
                for id, value in zip(event.ids, getattr(event, what), strict=False):
                    if value is not None:
                        total.setdefault(f"{self._before}{id}/{what}", []).append(float(value))
        return {name: max(each) if is_memory(name) else sum(each) / len(each)
                for name, each in total.items()}


class Merge:
    """Makes rows from the ranks' steps, to which more may be added between two rows."""

    def __init__(self, ranks: dict[int, RankSteps]) -> None:
        self._all = ranks
        self._counted = ranks
        """Those of which the mean is made."""
        self._latest: dict[int, schema.Step] = {}
        """Rank → its last step event of this attempt, for what is summed over ranks."""
        self._attempt = 1
        self._place: Place | None = None
        self._lead: Piece | None = None
        """What the next row is made of; no piece: only of values with names."""

    def advance(self) -> Place | None:
        """The place of the next row; None if there is nothing to make one of."""
        self._counted = {rank: steps for rank, steps in self._all.items() if not steps.apart}
        steps = [each.pieces[0] for each in self._counted.values() if each.pieces]
        names = [each.named[0].place for each in self._counted.values() if each.named]
        self._lead = min(steps, key=lambda piece: piece.place, default=None)
        self._place = None if self._lead is None \
            else self._lead.place._replace(step=self._lead.last)
        named = min(names, default=None)
        if named is not None and (self._place is None or named < self._place):
            self._lead, self._place = None, named
        return self._place

    @property
    def time(self) -> float:
        """When the step of the next row ended, after `advance`; -inf if it is of no step."""
        return self._lead.t if self._lead is not None else float("-inf")

    def lacking(self) -> list[int]:
        """After `advance`: the ranks of which more must be read before the row can be made; all, if
        there is none yet."""
        place = self._place
        return [rank for rank, steps in self._counted.items()
                if place is None or steps.upto is None or steps.upto <= place]

    def row(self) -> Row | None:
        """After `advance`: the next row. None if nothing is known of it."""
        place, lead = self._place, self._lead
        if place is None:
            return None
        values, t = self._named_at(place)
        if lead is not None:
            if place.attempt != self._attempt:
                self._latest.clear()
                self._attempt = place.attempt
            t = lead.t
            values = self._losses(place) | self._of_steps(place, lead.event) | values
        return Row(place.step, t, place.attempt, values) if values else None

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
