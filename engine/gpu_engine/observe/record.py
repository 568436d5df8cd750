"""From the steps of a script's optimizers to the lines of the rank's record.

There is an entry of the queue for each step, so it is small: a float is the loss of one more step
of optimizer 0, with its learning rate as it was; a tuple an optimizer's number, the loss of one
more step of it and its learning rate. Whatever else there is to tell is told at length.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any, NamedTuple

from ..events import schema
from ..events.writer import encode
from ..rank import recorder
from . import loss as observe_loss
from . import trainings as observe_trainings

_EACH_LOSS_UP_TO = 40  # as many a second as of the engine's own ranks
_SEEN_EVERY = 1.0
_OTHERS = 8  # optimizers beside the curve's whose losses are kept


class Step(NamedTuple):
    """One step of an optimizer. Loss and norm: a number, one that comes later, or None."""

    index: int
    name: str
    loss: Any
    lr: float | None
    norm: Any = None
    fresh: frozenset[int] | None = None
    """See `observe_trainings.Taken`."""

    @property
    def arrived(self) -> bool:
        return observe_loss.arrived(self.loss) and observe_loss.arrived(self.norm)


class Named(NamedTuple):
    """Named values, some of which may come later; one without a name is only waited for."""

    values: dict[str, Any]

    @property
    def arrived(self) -> bool:
        return all(map(observe_loss.arrived, self.values.values()))


class Seen(Named):
    """Values of which the latest are told, once a second."""

    __slots__ = ()


class Line(NamedTuple):
    """An event that is written when its turn has come."""

    event: schema.Event
    arrived = True


class _About(NamedTuple):
    """What is told of one step; `number`: of its optimizer, from 1."""

    name: str
    number: int
    loss: float | None
    lr: float | None
    norm: float | None


class _Span:
    """Steps that make one event. What they don't say is as it was before."""

    def __init__(self) -> None:
        self.name = ""
        self.step = 0
        self.lr: float | None = None
        self.clear()

    def clear(self) -> None:
        self.n = 0
        self.losses: list[float] = []
        self.norm: float | None = None

    def took_from(self, queue: deque[Any]) -> int:
        """All that `queue` begins with that is the loss of one more step; how many."""
        losses = self.losses
        before = len(losses)
        with contextlib.suppress(IndexError):  # nothing is left: cheaper than to ask each time
            while type(queue[0]) is float:
                losses.append(queue.popleft())
        count = len(losses) - before
        self.step += count
        self.n += count
        return count

    def took(self, about: _About) -> None:
        self.n += 1
        self.name, self.lr = about.name, about.lr
        if about.loss is not None:
            self.losses.append(about.loss)
        if about.norm is not None:
            self.norm = about.norm


class Record:
    """Turns what is in the queue into lines, in the order in which it happened."""

    def __init__(self) -> None:
        self.trainings = observe_trainings.Trainings()
        self._curve = _Span()
        self._beside: dict[int, _Span] = {}
        self._name: dict[int, str] = {}
        self._lr: dict[int, float | None] = {}
        self._count: dict[int, int] = {}
        """Steps by optimizer."""
        self._seen: dict[str, Any] = {}
        self._seen_at = 0
        """The step of the latest."""
        self._due = 0.0

    @property
    def step(self) -> int:
        """Steps on the curve so far, of all trainings."""
        return self._curve.step

    def take(self, queue: deque[Any], skipped: int) -> list[bytes]:
        """The lines that are to be written by now. What is still on its way stays in `queue`."""
        lines: list[bytes] = []
        trainings, now = self.trainings, time.monotonic()
        while queue:
            item = queue[0]
            if type(item) is float:
                if trainings.curve == 0 and trainings.plain:
                    count = self._curve.took_from(queue)
                    self._count[0] += count
                    trainings.went_on(count)
                    continue
                step = self._taken(0, item)
            elif type(item) is tuple:
                index, loss, self._lr[index] = item
                step = self._taken(index, loss)
            elif not item.arrived:
                break
            elif type(item) is Step:
                self._name[item.index], self._lr[item.index] = item.name, item.lr
                step = self._taken(item.index, observe_loss.taken(item.loss),
                                   observe_loss.taken(item.norm), item.fresh)
            else:
                queue.popleft()
                self._beside_steps(item, skipped, lines)
                continue
            queue.popleft()
            for told in trainings.take(step, now):
                if told.step is not step and self._curve.n >= _EACH_LOSS_UP_TO:
                    self._end_steps(skipped, lines)  # it was kept: each loss is to be told
                self._tell(told, skipped, lines)
        for told in trainings.wait(now):
            self._tell(told, skipped, lines)
        self._end_steps(skipped, lines)
        if self._seen and now >= self._due:
            self._due = now + _SEEN_EVERY
            self._tell_seen(lines)
        return lines

    def end(self, skipped: int) -> list[bytes]:
        """The lines of steps of which was not known until now what they are."""
        lines: list[bytes] = []
        for told in self.trainings.end(time.monotonic()):
            self._tell(told, skipped, lines)
        self._end_steps(skipped, lines)
        if self._seen:
            self._tell_seen(lines)
        return lines

    def _tell_seen(self, lines: list[bytes]) -> None:
        lines.append(encode(schema.Metric(self._seen_at, self._seen)))
        self._seen = {}

    def _taken(self, index: int, loss: float | None, norm: float | None = None,
               fresh: frozenset[int] | None = None) -> observe_trainings.Taken:
        self._count[index] = self._count.get(index, 0) + 1
        about = _About(self._name.get(index, ""), self._count[index], loss, self._lr.get(index),
                       norm)
        return observe_trainings.Taken(index, about, fresh)

    def _tell(self, told: observe_trainings.Told, skipped: int, lines: list[bytes]) -> None:
        index, about, _ = told.step
        if not told.curve:
            span = self._beside.setdefault(index, _Span())
            span.step = about.number
            span.took(about)
            return
        if told.begins and self.trainings.number > 1:
            self._end_steps(skipped, lines)
            lines.append(encode(schema.Training(
                self.trainings.number, self._curve.step, about.name, index)))
        self._curve.step += 1
        self._curve.took(about)

    def _beside_steps(self, item: Named | Line, skipped: int, lines: list[bytes]) -> None:
        if type(item) is Line:
            self._end_steps(skipped, lines)
            lines.append(encode(item.event))
            return
        values = {k: recorder._read(observe_loss.taken(v)) for k, v in item.values.items()}
        if type(item) is Seen:
            self._seen |= {k: v for k, v in values.items() if v is not None}
            self._seen_at = self._curve.step
        elif "" not in values:
            self._end_steps(skipped, lines)
            lines.append(encode(schema.Metric(self._curve.step, values)))

    def _end_steps(self, skipped: int, lines: list[bytes]) -> None:
        curve = self._curve
        others = {i: span for i, span in self._beside.items() if span.n}
        if not curve.n and not others:
            return
        fields: dict[str, Any] = {"step": curve.step, "n": curve.n, "lr": curve.lr,
                                  "skipped": skipped}
        fields |= recorder.losses_of(curve.losses, _EACH_LOSS_UP_TO)
        if curve.norm is not None:
            fields["grad_norm"] = recorder._short(curve.norm)
        if others:
            fields["others"] = {
                i: schema.Other(span.name, span.step, span.n,
                                **recorder.losses_of(span.losses, _EACH_LOSS_UP_TO))
                for i, span in others.items() if i <= _OTHERS}
        lines.append(encode(schema.Step(**fields)))
        for span in (curve, *others.values()):
            span.clear()
