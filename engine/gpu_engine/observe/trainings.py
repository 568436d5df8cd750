"""Decides which steps of a script's optimizers make the loss curve. Pure: the thread that writes
the record calls it, in the order of the steps, so a late decision does not hold up the script.

The steps of one optimizer are the curve and are counted as the run's steps. What the steps of a
second optimizer mean shows only later: the two may take turns, as in a GAN, or one training has
ended and the next has begun, as in a cross-validation. Until that is known, such steps are kept.
The rules:

- If the first optimizer steps once more, the two take turns. The second one is shown beside the
  curve from then on.
- If the second one makes 50 steps without the first (or a few within ten seconds), it is the next
  training, and its steps continue the count. If it already takes turns, it needs three times as
  many steps in a row as in its longest turn.
- An optimizer that takes over the number of one that is gone begins the next training at once. The
  exception is an inner loop, which makes a new optimizer each time: there, another optimizer that
  still exists has stepped in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

ENOUGH = 50
"""So many steps of another optimizer in a row make a training of their own."""
_FEW, _SECONDS = 3, 10.0
"""So few steps are enough after so many seconds, if the curve's optimizer had made as many."""


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
    others_alive: frozenset[int] | None = None
    """If the optimizer has its number since this step, the numbers of all others that still exist;
    else None."""
    number: int = 0
    """Its number among the steps of its optimizer, from 1, once it is known."""


class PlacedStep(NamedTuple):
    """A step for which it is decided whether it is on the curve or beside it."""

    on_curve: bool
    begins_training: bool
    step: Step


class Trainings:
    """What is known so far about one rank's optimizers."""

    def __init__(self) -> None:
        self.curve: int | None = None
        """The optimizer whose steps are the curve; None if nothing has stepped."""
        self.number = 0
        """The number of the current training, from 1."""
        self.kept: list[Step] = []
        """Steps since the curve's last one that are not decided yet."""
        self._since = 0.0
        """When the first of the kept steps came."""
        self._row = 0
        """How many steps in a row the curve's optimizer made before them."""
        self._others: dict[int, int] = {}
        """How many steps each other optimizer has made since the curve's last step."""
        self._turns: dict[int, int] = {}
        """The longest turn of each optimizer that takes turns with the curve's."""
        self._before: set[int] = set()
        """Optimizers whose steps were the curve earlier."""
        self._inner: set[int] = set()
        """Optimizers of inner loops."""

    def add(self, step: Step, now: float) -> Iterator[PlacedStep]:
        """Take one more step, at the time `now` in seconds. Gives, in order, the steps that are
        decided by it."""
        if self.curve is None or (step.optimizer == self.curve and self._takes_over(step)):
            yield from self._end_turns()
            yield self._begin(step)
        elif step.optimizer == self.curve:
            yield from self._end_turns()
            self._row += 1
            yield PlacedStep(True, False, step)
        else:
            yield from self._other(step, now)

    def wait(self, now: float) -> Iterator[PlacedStep]:
        """Note that no step has come by the time `now`. Gives the steps that are decided by it."""
        for index, count in self._others.items():
            if index not in self._turns and min(count, self._row) >= _FEW \
                    and now - self._since >= _SECONDS:
                yield from self._continue_with(index, now)
                return

    def end(self, now: float) -> Iterator[PlacedStep]:
        """Note that no further step will come. Gives all steps that are left."""
        while self.kept:
            new = [i for i, count in self._others.items() if i not in self._turns and count > 1]
            if not new:
                break
            yield from self._continue_with(new[0], now)
        yield from self._end_turns()

    def _other(self, step: Step, now: float) -> Iterator[PlacedStep]:
        index = step.optimizer
        count = self._others[index] = self._others.get(index, 0) + 1
        if index in self._turns:
            if count > max(ENOUGH, 3 * self._turns[index]):
                self.kept.append(step)
                yield from self._continue_with(index, now)
            elif self.kept:
                self.kept.append(step)  # so that all come out in order
            else:
                yield PlacedStep(False, False, step)
            return
        if not self.kept:
            self._since = now
        self.kept.append(step)
        if index in self._before or count >= ENOUGH:
            yield from self._continue_with(index, now)

    def _takes_over(self, step: Step) -> bool:
        """Whether this step, under the curve's number, is by a new optimizer that begins a
        training."""
        if step.others_alive is None:
            return False
        if any(i in step.others_alive for i in self._others):
            self._inner.add(step.optimizer)
        return step.optimizer not in self._inner

    def _continue_with(self, index: int, now: float) -> Iterator[PlacedStep]:
        """Continue the curve with another optimizer, from the first of its kept steps on."""
        kept, self.kept = self.kept, []
        at = next(i for i, step in enumerate(kept) if step.optimizer == index)
        for step in kept[:at]:
            yield PlacedStep(False, False, step)
        if index in self._before and self.curve is not None:  # the two take turns, long ones
            self._turns[self.curve] = max(self._row, self._turns.get(self.curve, 0))
        self._turns.pop(index, None)
        yield self._begin(kept[at])
        for step in kept[at + 1:]:
            yield from self.add(step, now)

    def _begin(self, step: Step) -> PlacedStep:
        if self.curve is not None:
            self._before.add(self.curve)
        self._before.discard(step.optimizer)
        self._others.clear()
        self.curve, self._row = step.optimizer, 1
        self.number += 1
        return PlacedStep(True, True, step)

    def _end_turns(self) -> Iterator[PlacedStep]:
        """The curve's optimizer steps once more, so the steps in between were turns of others."""
        for index, count in self._others.items():
            self._turns[index] = max(count, self._turns.get(index, 0))
        if self._others:
            self._others.clear()
            self._row = 0
        kept, self.kept = self.kept, []
        for step in kept:
            yield PlacedStep(False, False, step)
