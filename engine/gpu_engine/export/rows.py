"""A run as rows of named values, one for each step: reads the events of its ranks in bounded
memory and merges them.

A row is made of the steps of the lowest rank that has them: one step, or those of which that rank
has recorded only the mean. The other ranks count with the mean of the same steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
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
_MOST_READINGS = 1024
"""Readings that wait for their row; of more, the greatest memory is kept."""
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


class Source:
    """The rows of one run, from the first to the last step that is recorded now."""

    def __init__(self, run: Path) -> None:
        """`run`: the run folder."""
        self._all = {number: RankSteps(Tail(events_path(run, number)))
                     for number in ranks_with_files(run)}
        self._counted = self._all
        """Those of which the mean is made."""
        self._devices = [DeviceReadings(Tail(path), host)
                         for host, path in devices_paths(run).items()]
        self._latest: dict[int, schema.Step] = {}
        """Rank → its last step event of this attempt, for what is summed over ranks."""
        self._attempt = 1
        self.begins: dict[int, int] = {}
        """Attempt after the first → its first step."""
        for steps in self._all.values():
            for number, step in attempts(steps.tail.path):
                if number > 1:
                    self.begins[number] = min(step, self.begins.get(number, step))

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return sum(steps.tail.skipped for steps in self._all.values())

    def rows(self) -> Iterator[Row]:
        """All rows, once. The last one has what was read of memory and devices after it as well."""
        last: Row | None = None
        while (found := self._next()) is not None:
            place, lead = found
            for steps in self._all.values():
                steps.read_beyond(place)
            values, t = self._named_at(place)
            if lead is not None:
                if place.attempt != self._attempt:
                    self._latest.clear()
                    self._attempt = place.attempt
                t = lead.t
                values = self._losses(place) | self._of_steps(place, lead.event) | values
            # Steps that a later attempt has done again are lost work, and so are their readings.
            lost = any(number > place.attempt and step <= place.step
                       for number, step in self.begins.items())
            readings = self._readings(t) if lead is not None or lost else {}
            if lost:
                continue
            if values or readings:
                if last is not None:
                    yield last
                last = Row(place.step, t, place.attempt, {**values, **readings})
        if last is not None:
            values = dict(last.values)
            for name, value in self._readings(inf).items():
                values[name] = max(values.get(name, value), value) if is_memory(name) \
                    else values.get(name, value)
            yield replace(last, values=values)

    def _next(self) -> tuple[Place, Piece | None] | None:
        """The place of the next row, and what it is made of: no piece, if only of values with
        names. None after the last."""
        for steps in self._all.values():
            steps.read_beyond(None)
        self._counted = {rank: steps for rank, steps in self._all.items() if not steps.apart}
        pieces = [steps.pieces[0] for steps in self._counted.values() if steps.pieces]
        lead = min(pieces, key=lambda piece: piece.place, default=None)
        named = min((steps.named[0].place for steps in self._counted.values() if steps.named),
                    default=None)
        if lead is not None:
            place = lead.place._replace(step=lead.last)
            return (place, lead) if named is None or named >= place else (named, None)
        return None if named is None else (named, None)

    def _losses(self, place: Place) -> dict[str, float]:
        """The mean of the ranks' losses up to `place`, and the least and greatest of them."""
        means: list[float] = []
        finite: list[float] = []
        for rank, one in self._counted.items():
            total, many = 0.0, 0
            while one.pieces and one.pieces[0].place <= place:
                piece = one.pieces.popleft()
                until = min(piece.last, place.step)
                n = until - piece.place.step + 1
                if piece.loss is not None:
                    total, many = total + piece.loss * n, many + n
                    finite += [value for value in (piece.loss, piece.lo, piece.hi)
                               if value is not None and isfinite(value)]
                if piece.event is not None and until == piece.last:
                    self._latest[rank] = piece.event
                if until < piece.last:  # the row ends in the middle of what this event is about
                    one.pieces.appendleft(
                        piece._replace(place=piece.place._replace(step=until + 1)))
                    break
            if many:
                means.append(total / many)
        if not means:
            return {}
        found = {LOSS: sum(means) / len(means)}
        if len(finite) > 1:
            found |= {f"{LOSS}_min": min(finite), f"{LOSS}_max": max(finite)}
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
        values: dict[str, float] = {}
        for steps in self._all.values():
            while steps.memory and not steps.apart and steps.memory[0][0] <= t:
                greatest(values, steps.memory.popleft()[1])
        for devices in self._devices:
            values |= devices.before(t)
        return values


class RankSteps:
    """The events of one rank, taken apart as far as they are needed. What was merged is taken from
    the left of `pieces`, `named` and `memory`."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.pieces: deque[Piece] = deque()
        self.named: deque[Named] = deque()
        self.memory: deque[tuple[float, dict[str, float]]] = deque()
        """(Unix seconds, bytes by name; of several GPUs the fullest one's)."""
        self.apart = False
        """Whether it is a further process that trains as a rank of which another is counted."""
        self._upto: Place | None = None
        """The place up to which everything is known: that of the newest step; of a rank without
        steps, that of the newest value."""
        self._ended = False
        """Whether the file was read to its end, which is seen once: it may grow for ever."""
        self._attempt, self._returns = 1, 0
        self._last = -1
        self._stepped = False
        self._t: float | None = None
        """When the last step event of this attempt was written, Unix seconds."""

    def read_beyond(self, place: Place | None) -> None:
        """Read until all is known up to `place`; None: until the next step or value is."""
        while not self._ended and (
                not (self.pieces or (self.named and not self._stepped)) if place is None
                else self._upto is None or self._upto <= place):
            before = self.tail.offset
            for event in self.tail.read(_PIECE):
                self._fold(event)
            self._ended = self.tail.offset == before

    def _fold(self, event: Event) -> None:
        if isinstance(event, schema.Step):
            self._step(event)
        elif isinstance(event, schema.Memory):
            self._memory(event)
        elif isinstance(event, schema.Metric):
            self._name(event.step, event.t, {f"log/{n}": v for n, v in event.values.items()})
        elif isinstance(event, schema.Eval):
            self._name(event.step, event.t, {f"eval/{n}": v for n, v in event.values.items()})
        elif isinstance(event, schema.Start):
            self._attempt, self._returns, self._last = event.attempt or 1, 0, -1
            self._t, self.apart = None, event.process is not None

    def _step(self, event: schema.Step) -> None:
        if event.n:
            self._steps(event)
        others: dict[str, float | None] = {
            f"{LOSS}[{i}]": other.loss for i, other in (event.others or {}).items()}
        if others:
            self._name(event.step, event.t, others)

    def _steps(self, event: schema.Step) -> None:
        losses = event.losses
        many = len(losses) or max(event.n, 1)
        first = max(event.step - many + 1, 0)
        if first <= self._last:
            self._returns += 1
        began = event.t if self._t is None else min(self._t, event.t)
        self._last, self._t, self._stepped = event.step, event.t, True
        self._upto = Place(self._attempt, self._returns, event.step)
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

    def _name(self, step: int | None, t: float, values: dict[str, float | None]) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        if not known:
            return
        place = Place(self._attempt, self._returns, max(self._last, 0) if step is None else step)
        self.named.append(Named(place, t, known))
        if not self._stepped and (self._upto is None or place > self._upto):
            self._upto = place

    def _memory(self, event: schema.Memory) -> None:
        values: dict[str, float] = {}
        for name, each in (("memory/gpu_allocated", event.gpu_allocated),
                           ("memory/gpu_reserved", event.gpu_reserved),
                           ("memory/gpu_peak", event.gpu_peak), ("memory/host", (event.rss,))):
            known = [b for b in each if b is not None]
            if known:
                values[name] = float(max(known))
        if len(self.memory) == _MOST_READINGS:
            greatest(values, self.memory.popleft()[1])
        self.memory.append((event.t, values))


def greatest(into: dict[str, float], values: dict[str, float]) -> None:
    """Keep the greatest value of each name in `into`."""
    for name, value in values.items():
        into[name] = max(into.get(name, value), value)


def is_memory(name: str) -> bool:
    """Whether the greatest of several values of this name counts."""
    return name.startswith("memory/") or name.endswith("/memory_used")


class DeviceReadings:
    """The figures of one machine's devices that were read and not yet put into a row."""

    def __init__(self, tail: Tail, host: str | None = None) -> None:
        """`host`: its name, which then stands before its devices'; None: this machine."""
        self._tail = tail
        self._before = f"device/{host}:" if host else "device/"
        self._events: deque[schema.Devices] = deque(maxlen=_MOST_READINGS)
        self._ended = False

    def before(self, t: float) -> dict[str, float]:
        """The means of all readings up to `t`, which are then forgotten; of memory the greatest."""
        while not self._ended and (not self._events or self._events[-1].t < t):
            offset = self._tail.offset
            self._events += [e for e in self._tail.read(_PIECE) if isinstance(e, schema.Devices)]
            self._ended = self._tail.offset == offset
        total: dict[str, list[float]] = {}
        while self._events and self._events[0].t <= t:
            event = self._events.popleft()
            for what in ("utilization", "memory_used", "temperature", "power"):
                for id, value in zip(event.ids, getattr(event, what), strict=False):
                    if value is not None:
                        total.setdefault(f"{self._before}{id}/{what}", []).append(float(value))
        return {name: max(each) if is_memory(name) else sum(each) / len(each)
                for name, each in total.items()}
