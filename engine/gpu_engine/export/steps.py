"""What one rank's events say about steps, as pieces and named values that can be merged with those
of other ranks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from gpu_engine.events import schema
from gpu_engine.events.schema import Event

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
