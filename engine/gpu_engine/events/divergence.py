"""Whether a loss has diverged: it is far above its best, and has been for long. Pure.

The rule compares means over 50 steps, as single losses are noisy. It had fallen to half of the
first mean or less, twice in a row; since then it has lost more than half of what it had gained, in
each mean of the last 200 steps and of the last fifth of all steps. So it does not depend on the
loss's scale. Random losses whose standard deviation is as large as their mean do not look like
that, as the mean of 50 of them varies by a seventh (tests/events/test_divergence.py draws 2,000
such runs).

Nothing is said of a loss that has ever been zero, negative or not finite (rewards, likelihoods of
densities: a rise may be meant), of several optimizers (the loss of a GAN's generator may rise), of
several trainings in one process, and of a rise that is over. A plateau is not judged at all: a
training that has converged looks the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.events import schema

WINDOW = 50
"""Steps of a mean, at least."""
LONG = 200
"""For at least so many steps the loss is too high,"""
SHARE = 0.2
"""and for at least this share of all steps."""
FALLEN = 0.5
"""Before that it was at most this times the first mean, in two means in a row."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A loss that has diverged. Losses are means over `WINDOW` steps."""

    loss: float
    best: float
    best_step: int
    since: int
    """The step after which it was never near its best."""
    step: int


class Trend:
    """Follows the loss of one rank, in little memory."""

    def __init__(self) -> None:
        self._silent = False
        self._sum, self._n = 0.0, 0
        self._first: float | None = None
        self._best: tuple[float, int] | None = None
        self._now: tuple[float, int] | None = None
        self._low = 0
        """Means in a row that were low enough; once there were two, that is kept."""
        self._since = 0
        self._began: int | None = None

    def fold(self, event: schema.Event) -> None:
        """Take in the next event of the rank."""
        if isinstance(event, schema.Training) or (isinstance(event, schema.Step) and event.others):
            self._silent = True
        elif isinstance(event, schema.Schedule):
            self.__init__()  # another attempt may go on from an earlier step
        elif isinstance(event, schema.Step) and event.n and not self._silent:
            self._step(event)

    def _step(self, event: schema.Step) -> None:
        least = min(event.losses, default=event.loss_min if event.loss_min is not None
                    else event.loss)
        if event.loss is None or least is None or not 0 < least <= event.loss < float("inf"):
            self._silent = event.loss is not None  # a step without a loss says nothing
            return
        if self._began is None:
            self._began = self._since = event.step - event.n
        self._sum += event.loss * event.n
        self._n += event.n
        if self._n < WINDOW:
            return
        mean = self._sum / self._n
        self._sum, self._n = 0.0, 0
        self._now = (mean, event.step)
        if self._first is None:
            self._first = mean
        if self._best is None or mean < self._best[0]:
            self._best = self._now
        if self._low < 2:
            self._low = self._low + 1 if mean <= FALLEN * self._first else 0
        if mean <= (self._first + self._best[0]) / 2:
            self._since = event.step

    @property
    def found(self) -> Divergence | None:
        """What there is to say now; None: nothing."""
        if self._silent or self._first is None or self._best is None or self._now is None \
                or self._began is None:
            return None
        (best, best_step), (loss, step) = self._best, self._now
        high = step - self._since
        if self._low < 2 or high < LONG or high < SHARE * (step - self._began):
            return None
        return Divergence(loss, best, best_step, self._since, step)
