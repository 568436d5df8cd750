"""Turns a script's steps and logged values into lines of the rank's record.

The script's thread appends items to a queue, and the thread that writes takes them out: a `Step`,
`Values`, or an event that could not be written at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..events import schema
from ..events.writer import encode
from ..worker.rank.values import loss_fields, number, short, spans
from .loss import has_arrived, value_of
from .trainings import PlacedStep, Step, Trainings

_EACH_LOSS_UP_TO = 40  # losses a tick, 200 a second, as in the engine's own recorder
_LOGGED_EVERY = 1.0  # seconds
_OTHERS = 8  # the most optimizers beside the curve's whose losses are recorded


class Values(NamedTuple):
    """Named values of the current step."""

    values: dict[str, Any]
    latest: bool = False
    """Whether they went to a logger: of these only the latest ones are recorded, once a second."""
    dropped: bool = False
    """Whether they only have to arrive, and are not recorded."""


class _Span:
    """The steps that one event covers. Name and learning rate stay until a step changes them."""

    def __init__(self) -> None:
        self.name = ""
        self.step = 0
        self.lr: float | None = None
        self.clear()

    def clear(self) -> None:
        """Begin the next span."""
        self.n = 0
        self.losses: list[float | None] = []
        self.rates: list[float | None] = []
        self.norm: float | None = None

    def add(self, step: Step) -> None:
        """Add one more step."""
        self.n += 1
        self.name, self.lr = step.name, step.lr
        self.losses.append(step.loss)
        self.rates.append(step.lr)
        if step.norm is not None:
            self.norm = step.norm


class StepEvents:
    """Makes events from the items of the queue, in the order in which they happened."""

    def __init__(self) -> None:
        self._trainings = Trainings()
        self._curve = _Span()
        self._beside: dict[int, _Span] = {}
        self._steps: dict[int, int] = {}
        """By the optimizer's number."""
        self._logged: dict[str, float | None] = {}
        self._logged_at = 0
        """The step of the latest logged values."""
        self._logged_due = 0.0
        self.has_losses = False
        """Whether the loss of any step is known."""

    @property
    def step(self) -> int:
        """Steps on the loss curve so far, over all trainings."""
        return self._curve.step

    def collect(self, queue: deque[Any], skipped: int) -> list[bytes]:
        """Take the items from `queue` that have arrived. Returns the lines to write now. `skipped`:
        how many steps a GradScaler has left out so far."""
        lines: list[bytes] = []
        trainings, now = self._trainings, time.monotonic()
        while queue:
            item = queue[0]
            if not all(map(has_arrived, _numbers_of(item))):
                break
            queue.popleft()
            if type(item) is not Step:
                self._add_item(item, skipped, lines)
                continue
            step = self._step_of(item)
            for one in trainings.add(step, now):
                if one.step is not step and self._curve.n >= _EACH_LOSS_UP_TO:
                    self._end_span(skipped, lines)  # a kept step: record each of its losses
                self._add_step(one, skipped, lines)
        for one in trainings.wait(now):
            self._add_step(one, skipped, lines)
        self._end_span(skipped, lines)
        if self._logged and now >= self._logged_due:
            self._logged_due = now + _LOGGED_EVERY
            self._add_logged(lines)
        return lines

    def end(self, skipped: int) -> list[bytes]:
        """The lines of all steps that are still kept, as no more steps will come."""
        lines: list[bytes] = []
        for one in self._trainings.end(time.monotonic()):
            self._add_step(one, skipped, lines)
        self._end_span(skipped, lines)
        if self._logged:
            self._add_logged(lines)
        return lines

    def _add_logged(self, lines: list[bytes]) -> None:
        lines.append(encode(schema.Metric(self._logged_at, self._logged)))
        self._logged = {}

    def _step_of(self, item: Step) -> Step:
        index = item.optimizer
        number = self._steps[index] = self._steps.get(index, 0) + 1
        return item._replace(number=number, loss=value_of(item.loss), norm=value_of(item.norm))

    def _add_step(self, one: PlacedStep, skipped: int, lines: list[bytes]) -> None:
        step = one.step
        if not one.on_curve:
            span = self._beside.setdefault(step.optimizer, _Span())
            span.step = step.number
            span.add(step)
            return
        if one.begins_training and self._trainings.number > 1:
            self._end_span(skipped, lines)
            lines.append(encode(schema.Training(
                self._trainings.number, self._curve.step, step.name, step.optimizer)))
        self._curve.step += 1
        self._curve.add(step)

    def _add_item(self, item: Values | schema.Event, skipped: int, lines: list[bytes]) -> None:
        if not isinstance(item, Values):
            self._end_span(skipped, lines)
            lines.append(encode(item))
            return
        values = {name: number(value_of(v)) for name, v in item.values.items()}
        if item.latest:
            self._logged |= {name: v for name, v in values.items() if v is not None}
            self._logged_at = self._curve.step
        elif not item.dropped:
            self._end_span(skipped, lines)
            lines.append(encode(schema.Metric(self._curve.step, values)))

    def _end_span(self, skipped: int, lines: list[bytes]) -> None:
        curve = self._curve
        self.has_losses = self.has_losses or any(x is not None for x in curve.losses)
        beside = {i: span for i, span in self._beside.items() if span.n}
        if not curve.n and not beside:
            return
        others = {i: schema.Other(span.name, span.step, span.n,
                                  **loss_fields(span.losses, _EACH_LOSS_UP_TO))
                  for i, span in beside.items() if i <= _OTHERS}
        parts = spans(curve.losses, _EACH_LOSS_UP_TO) or [slice(0, 0)]
        for part in parts:
            last, losses = part is parts[-1], curve.losses[part]
            lr = curve.rates[part.stop - 1] if losses else curve.lr
            lines.append(encode(schema.Step(
                curve.step - curve.n + part.stop, lr, skipped, n=len(losses),
                grad_norm=short(curve.norm) if last and curve.norm is not None else None,
                others=others if last and beside else None,
                **loss_fields(losses, _EACH_LOSS_UP_TO))))
        for span in (curve, *beside.values()):
            span.clear()


def _numbers_of(item: Any) -> Iterable[Any]:
    """The numbers of an item of the queue that may still be on their way from the GPU."""
    if isinstance(item, Step):
        return item.loss, item.norm
    return item.values.values() if isinstance(item, Values) else ()
