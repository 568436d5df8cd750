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
from ..worker.rank.record_writer import loss_fields, number, short, spans
from .loss import PendingLoss, has_arrived, value_of

_EACH_LOSS_UP_TO = 100  # losses a tick, 200 a second, as in the engine's own recorder
_LOGGED_EVERY = 1.0  # seconds
_OTHERS = 8  # the most optimizers beside the curve's whose losses are recorded
_FEW, _ENOUGH = 3, 50
"""So many steps of another optimizer, without one of the curve's, are a training of their own: of
one that has not stepped before, and of one that has."""


class Step(NamedTuple):
    """One step of an optimizer."""

    optimizer: int
    """Its number."""
    name: str
    """Its class."""
    loss: Any
    """A float, or a `PendingLoss` until that has arrived; None: unknown."""
    lr: float | None
    norm: Any = None
    """The norm of its gradients, of the same types, if the run records it."""
    begins: bool = False
    """Whether the optimizer has its number since this step, and is the only one that exists."""


made = tuple.__new__
"""made(Step, (…)) costs a fifth of Step(…), which the script's own thread would pay."""


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
    """Makes events from the items of the queue, in the order in which they happened.

    The steps of the optimizer that steps first are the loss curve and are counted as the run's
    steps. What those of another mean shows only later, so they are kept until then:

    - If the first one steps once more, the two take turns, as in a GAN: the others are shown beside
      the curve.
    - If the other one goes on alone, it is the next training, as of another layer, and its steps
      continue the count.
    - A new optimizer, while no other exists any more, begins the next training at once, as in a
      cross-validation. An inner loop, which makes a new one each time, has another beside it.
    """

    def __init__(self) -> None:
        self._training = 0
        """The number of the current training, from 1."""
        self._on_curve: int | None = None
        """The optimizer whose steps are the curve."""
        self._in_a_row = 0
        """How many steps it has made since another one's."""
        self._kept: list[tuple[Step, int]] = []
        """Steps of others since then, each with its number among those of its optimizer."""
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
        self._lines: list[bytes] = []
        """What is to be written now."""
        self._skipped = 0
        """How many steps a GradScaler has left out so far."""

    @property
    def step(self) -> int:
        """Steps on the loss curve so far, over all trainings."""
        return self._curve.step

    def collect(self, queue: deque[Any], skipped: int, *, over: bool = False) -> list[bytes]:
        """Take the items from `queue` that have arrived. Returns the lines to write now. `skipped`:
        how many steps a GradScaler has left out so far. `over`: no more items will come."""
        self._lines, self._skipped, now = [], skipped, time.monotonic()
        while queue:
            item = queue[0]
            if not all(map(has_arrived, _numbers_of(item))):
                break
            queue.popleft()
            if not isinstance(item, Step):
                self._add_item(item)
                continue
            if item.norm is not None or type(item.loss) is PendingLoss:
                item = item._replace(loss=value_of(item.loss), norm=value_of(item.norm))
            self._add_step(item)
        if over:
            self._end_turns()
        self._end_span()
        if self._logged and (over or now >= self._logged_due):
            self._logged_due = now + _LOGGED_EVERY
            self._write(schema.Metric(self._logged_at, self._logged))
            self._logged = {}
        return self._lines

    def _write(self, event: schema.Event) -> None:
        self._lines.append(encode(event))

    def _add_step(self, step: Step) -> None:
        index = step.optimizer
        count = self._steps[index] = self._steps.get(index, 0) + 1
        if step.begins or self._on_curve is None:
            self._end_turns()
            self._begin([step])
        elif index == self._on_curve:
            self._end_turns()
            self._in_a_row += 1
            self._to_curve(step)
        else:
            self._kept.append((step, count))
            mine = [one for one, _ in self._kept if one.optimizer == index]
            few = count == len(mine) and self._in_a_row >= _FEW
            if len(mine) >= (_FEW if few else _ENOUGH):
                self._kept = [kept for kept in self._kept if kept[0].optimizer != index]
                self._end_turns()
                self._begin(mine)

    def _begin(self, steps: list[Step]) -> None:
        """Go on with the curve by these steps of another optimizer."""
        self._on_curve, self._in_a_row = steps[0].optimizer, len(steps)
        self._training += 1
        if self._training > 1:
            self._end_span()
            self._write(schema.Training(self._training, self._curve.step, steps[0].name,
                                        self._on_curve))
        for step in steps:
            self._to_curve(step)

    def _to_curve(self, step: Step) -> None:
        self._curve.step += 1
        self._curve.add(step)

    def _end_turns(self) -> None:
        """The kept steps were turns of others."""
        for step, count in self._kept:
            span = self._beside.setdefault(step.optimizer, _Span())
            span.step = count
            span.add(step)
        if self._kept:
            self._kept, self._in_a_row = [], 0

    def _add_item(self, item: Values | schema.Event) -> None:
        if not isinstance(item, Values):
            self._end_span()
            self._write(item)
            return
        values = {name: number(value_of(v)) for name, v in item.values.items()}
        if item.latest:
            self._logged |= {name: v for name, v in values.items() if v is not None}
            self._logged_at = self._curve.step
        elif not item.dropped:
            self._end_span()
            self._write(schema.Metric(self._curve.step, values))

    def _end_span(self) -> None:
        """Write the steps since the last time, those of the curve and those beside it."""
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
            self._write(schema.Step(
                curve.step - curve.n + part.stop, lr, self._skipped, n=len(losses),
                grad_norm=short(curve.norm) if last and curve.norm is not None else None,
                others=others if last and beside else None,
                **loss_fields(losses, _EACH_LOSS_UP_TO)))
        for span in (curve, *beside.values()):
            span.clear()


def _numbers_of(item: Any) -> Iterable[Any]:
    """The numbers of an item of the queue that may still be on their way from the GPU."""
    if isinstance(item, Step):
        return item.loss, item.norm
    return item.values.values() if isinstance(item, Values) else ()
