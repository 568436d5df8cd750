"""Which of a script's optimizers is the curve, step by step. Pure: the thread that writes the
record asks, in the order of the steps, so deciding late costs the script nothing.

One optimizer's steps are the curve and the run's count. What a step of another one means shows
only later: the two take turns, as in a GAN, or one training has ended and the next has begun, as
in a cross-validation. Until that is known such steps are kept, and told then, all of them:

- the first steps again: they take turns, and the other stands beside the curve from now on;
- 50 steps without the first (or a few, and ten seconds): the next training, whose steps go on with
  the count. An optimizer that stands beside the curve has to go on three times longer than it
  ever did in turn.
- An optimizer that takes a dead one's place begins the next training at once, unless another one
  that lives has ever stepped between: then it is an inner loop's, made anew each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

ENOUGH = 50
"""Steps of another optimizer without one of the curve's that make a training of their own."""
_FEW, _SECONDS = 3, 10.0
"""As many are enough after so many seconds, where the curve's had stepped as often in a row."""


class Taken(NamedTuple):
    """One step of one optimizer, by its number; what is told of it is its own business."""

    index: int
    what: Any
    fresh: frozenset[int] | None = None
    """Not None: another optimizer steps in this place now; which ones live."""


class Told(NamedTuple):
    """What a step is: the curve's, or one beside it."""

    curve: bool
    begins: bool
    """Whether a training begins with it."""
    step: Taken


class Trainings:
    """What is known so far of one rank's optimizers."""

    def __init__(self) -> None:
        self.curve: int | None = None
        """The optimizer whose steps are the curve's; None: nothing has stepped."""
        self.number = 0
        """Of the present training, from 1."""
        self.kept: list[Taken] = []
        """Steps since the curve's last one of which is not known what they are."""
        self._since = 0.0
        """When the first of them came."""
        self._row = 0
        """Steps of the curve's before them, in a row."""
        self._others: dict[int, int] = {}
        """Steps of others since the curve's last one."""
        self._turns: dict[int, int] = {}
        """Those that take turns with the curve's: the longest turn."""
        self._before: set[int] = set()
        """Those that were the curve."""
        self._inner: set[int] = set()
        """Those that are an inner loop's."""

    @property
    def plain(self) -> bool:
        """Whether the next step of the curve's optimizer changes nothing here."""
        return not self._others

    def went_on(self, count: int) -> None:
        """The curve's optimizer has stepped so many times, while `plain`."""
        self._row += count

    def take(self, step: Taken, now: float) -> Iterator[Told]:
        """One more step at `now`, any clock's seconds: what has become known by it."""
        if self.curve is None or (step.index == self.curve and self._succeeds(step)):
            yield from self._end_turns()
            yield self._begin(step)
        elif step.index == self.curve:
            yield from self._end_turns()
            self._row += 1
            yield Told(True, False, step)
        else:
            yield from self._other(step, now)

    def wait(self, now: float) -> Iterator[Told]:
        """Nothing more has come by `now`."""
        for index, count in self._others.items():
            if index not in self._turns and min(count, self._row) >= _FEW \
                    and now - self._since >= _SECONDS:
                yield from self._succeed(index, now)
                return

    def end(self, now: float) -> Iterator[Told]:
        """Nothing more will come."""
        while self.kept:
            new = [i for i, count in self._others.items() if i not in self._turns and count > 1]
            if not new:
                break
            yield from self._succeed(new[0], now)
        yield from self._end_turns()

    def _other(self, step: Taken, now: float) -> Iterator[Told]:
        index = step.index
        count = self._others[index] = self._others.get(index, 0) + 1
        if index in self._turns:
            if count > max(ENOUGH, 3 * self._turns[index]):
                self.kept.append(step)
                yield from self._succeed(index, now)
            elif self.kept:
                self.kept.append(step)  # told in the order in which they came
            else:
                yield Told(False, False, step)
            return
        if not self.kept:
            self._since = now
        self.kept.append(step)
        if index in self._before or count >= ENOUGH:
            yield from self._succeed(index, now)

    def _succeeds(self, step: Taken) -> bool:
        """Whether it is a new optimizer's, in the curve's place, that begins a training."""
        if step.fresh is None:
            return False
        if any(i in step.fresh for i in self._others):
            self._inner.add(step.index)
        return step.index not in self._inner

    def _succeed(self, index: int, now: float) -> Iterator[Told]:
        """The curve goes on with this optimizer, from the first of its steps that is kept."""
        kept, self.kept = self.kept, []
        at = next(i for i, step in enumerate(kept) if step.index == index)
        for step in kept[:at]:
            yield Told(False, False, step)
        came_back = index in self._before
        if came_back:  # so these two take turns, if long ones
            self._turns[self.curve] = max(self._row, self._turns.get(self.curve, 0))
        self._turns.pop(index, None)
        yield self._begin(kept[at])
        for step in kept[at + 1:]:
            yield from self.take(step, now)

    def _begin(self, step: Taken) -> Told:
        if self.curve is not None:
            self._before.add(self.curve)
        self._before.discard(step.index)
        self._others.clear()
        self.curve, self._row = step.index, 1
        self.number += 1
        return Told(True, True, step)

    def _end_turns(self) -> Iterator[Told]:
        """The curve's optimizer steps again: what came between were turns."""
        for index, count in self._others.items():
            self._turns[index] = max(count, self._turns.get(index, 0))
        if self._others:
            self._others.clear()
            self._row = 0
        kept, self.kept = self.kept, []
        for step in kept:
            yield Told(False, False, step)
