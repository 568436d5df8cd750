"""Which steps of a script's optimizers make the loss curve. Pure: the thread that writes the record
asks, in the order of the steps, so deciding late costs the script nothing.

One optimizer's steps are the curve and the run's count. What a step of another one means shows
only later: the two take turns, as in a GAN, or one training has ended and the next has begun, as
in a cross-validation. Until that is known such steps are kept; then all of them are told:

- The first optimizer steps again: the two take turns, and the other stands beside the curve from
  now on.
- The other makes 50 steps without the first (or a few, in ten seconds): it is the next training,
  and its steps go on with the count. An optimizer that stands beside the curve has to step three
  times as often in a row as it ever did in turn.
- An optimizer that takes over the number of one that is gone begins the next training at once,
  unless another one that still exists has ever stepped between: then it belongs to an inner loop,
  which makes a new one each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")

ENOUGH = 50
"""Steps of another optimizer in a row that make a training of their own."""
_FEW, _SECONDS = 3, 10.0
"""So few are enough in so many seconds, if the curve's optimizer had stepped as often in a row."""


@dataclass(eq=False)
class OptimizerStep(Generic[V]):
    """One step of one optimizer."""

    optimizer: int
    """Its number."""
    values: V
    """What the caller keeps of the step."""
    others_alive: frozenset[int] | None = None
    """Not None: with this step another optimizer takes over the number of one that is gone, or a
    new number. Then the numbers of all others that still exist."""


@dataclass(eq=False)
class Sorted(Generic[V]):
    """A step of which is known what it is: one on the curve, or one beside it."""

    on_curve: bool
    begins_training: bool
    step: OptimizerStep[V]


class Trainings(Generic[V]):
    """What is known so far of one rank's optimizers."""

    def __init__(self) -> None:
        self.curve: int | None = None
        """The optimizer whose steps are the curve's; None: nothing has stepped."""
        self.number = 0
        """Of the present training, from 1."""
        self.kept: list[OptimizerStep[V]] = []
        """Steps since the curve's last one that are not sorted yet."""
        self._since = 0.0
        """When the first of them came."""
        self._row = 0
        """Steps of the curve's optimizer in a row, before them."""
        self._others: dict[int, int] = {}
        """Other optimizers: their steps since the curve's last one."""
        self._turns: dict[int, int] = {}
        """Optimizers that take turns with the curve's: their longest turn."""
        self._before: set[int] = set()
        """Optimizers that made the curve earlier."""
        self._inner: set[int] = set()
        """Optimizers of inner loops."""

    @property
    def plain(self) -> bool:
        """Whether the next step of the curve's optimizer changes nothing here."""
        return not self._others

    def went_on(self, count: int) -> None:
        """The curve's optimizer has stepped `count` times, while `plain`."""
        self._row += count

    def take(self, step: OptimizerStep[V], now: float) -> Iterator[Sorted[V]]:
        """One more step, at `now` in seconds of any clock. Gives the steps that are sorted by it,
        in order."""
        if self.curve is None or (step.optimizer == self.curve and self._takes_over(step)):
            yield from self._end_turns()
            yield self._begin(step)
        elif step.optimizer == self.curve:
            yield from self._end_turns()
            self._row += 1
            yield Sorted(True, False, step)
        else:
            yield from self._other(step, now)

    def wait(self, now: float) -> Iterator[Sorted[V]]:
        """No further step has come by `now`. Gives the steps that are sorted by that."""
        for index, count in self._others.items():
            if index not in self._turns and min(count, self._row) >= _FEW \
                    and now - self._since >= _SECONDS:
                yield from self._continue_with(index, now)
                return

    def end(self, now: float) -> Iterator[Sorted[V]]:
        """No further step will come. Gives all that are left."""
        while self.kept:
            new = [i for i, count in self._others.items() if i not in self._turns and count > 1]
            if not new:
                break
            yield from self._continue_with(new[0], now)
        yield from self._end_turns()

    def _other(self, step: OptimizerStep[V], now: float) -> Iterator[Sorted[V]]:
        index = step.optimizer
        count = self._others[index] = self._others.get(index, 0) + 1
        if index in self._turns:
            if count > max(ENOUGH, 3 * self._turns[index]):
                self.kept.append(step)
                yield from self._continue_with(index, now)
            elif self.kept:
                self.kept.append(step)  # told in the order in which they came
            else:
                yield Sorted(False, False, step)
            return
        if not self.kept:
            self._since = now
        self.kept.append(step)
        if index in self._before or count >= ENOUGH:
            yield from self._continue_with(index, now)

    def _takes_over(self, step: OptimizerStep[V]) -> bool:
        """Whether this step of the curve's number is a new optimizer's that begins a training."""
        if step.others_alive is None:
            return False
        if any(i in step.others_alive for i in self._others):
            self._inner.add(step.optimizer)
        return step.optimizer not in self._inner

    def _continue_with(self, index: int, now: float) -> Iterator[Sorted[V]]:
        """The curve goes on with another optimizer, from the first of its steps that is kept."""
        kept, self.kept = self.kept, []
        at = next(i for i, step in enumerate(kept) if step.optimizer == index)
        for step in kept[:at]:
            yield Sorted(False, False, step)
        if index in self._before and self.curve is not None:  # so they take turns, if long ones
            self._turns[self.curve] = max(self._row, self._turns.get(self.curve, 0))
        self._turns.pop(index, None)
        yield self._begin(kept[at])
        for step in kept[at + 1:]:
            yield from self.take(step, now)

    def _begin(self, step: OptimizerStep[V]) -> Sorted[V]:
        if self.curve is not None:
            self._before.add(self.curve)
        self._before.discard(step.optimizer)
        self._others.clear()
        self.curve, self._row = step.optimizer, 1
        self.number += 1
        return Sorted(True, True, step)

    def _end_turns(self) -> Iterator[Sorted[V]]:
        """The curve's optimizer steps again: what came between were turns."""
        for index, count in self._others.items():
            self._turns[index] = max(count, self._turns.get(index, 0))
        if self._others:
            self._others.clear()
            self._row = 0
        kept, self.kept = self.kept, []
        for step in kept:
            yield Sorted(False, False, step)
