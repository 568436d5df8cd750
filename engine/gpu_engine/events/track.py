"""How far the values of a run have gone, over all its steps: the least, the greatest and the last
of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_engine.events.schema import Eval, Event, Metric, Start, Step

LOSS = "loss"
EVAL = "eval:"
"""Before the name of an evaluation's value."""
_LOGGED_LOSS = "\0loss"
"""A value that the script logged as "loss": it counts where the steps' own losses are not known."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a value has gone. None: it was never a finite number."""

    least: float | None
    greatest: float | None
    last: float | None
    """Of the last step, finite or not."""


@dataclass(slots=True)
class _Rank:
    """The values of one rank: name → step → value."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    further: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Of a name the (step, value) of those that another one of the same step came after."""
    told: dict[str, int] = field(default_factory=dict)
    """Name → the greatest step of which this attempt has told it."""
    rates: list[float] = field(default_factory=list)
    """Examples a second, as its step events tell."""
    fresh: bool = False
    """Whether a new attempt has begun, none of whose steps is known yet."""
    attempt: int = 1
    second: bool = False
    """Whether another process trains as the same rank: the first counts."""


class Track:
    """Takes in the events of a run's ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def fold(self, rank: int, event: Event) -> None:
        """Add what an event says, in the order of the rank's file."""
        at = self._ranks.setdefault(rank, _Rank())
        if isinstance(event, Start):
            at.fresh, at.second = True, event.process is not None
            at.told.clear()
            at.attempt = event.attempt or 1
        elif at.second:
            return
        elif isinstance(event, Step):
            if event.n:
                self._step(at, event)
            if event.samples_per_s is not None:
                at.rates.append(event.samples_per_s)
        elif isinstance(event, Eval):
            self._named(at, event.step, event.values, EVAL)
        elif isinstance(event, Metric):
            self._named(at, event.step, event.values, "")

    @property
    def _present(self) -> list[_Rank]:
        """The ranks of the latest attempt: it may have fewer than one before."""
        latest = max((at.attempt for at in self._ranks.values()), default=1)
        return [at for at in self._ranks.values() if at.attempt == latest]

    @property
    def steps(self) -> int | None:
        """The last step whose loss is known, of the slowest rank."""
        last = [max(at.values[LOSS]) for at in self._present if at.values.get(LOSS)]
        return min(last, default=None)

    @property
    def samples_per_s(self) -> float | None:
        """Examples a second of all ranks together, by the median of each, which a slow first step
        does not move. None unless all tell theirs, as the ranks of a script do not."""
        each = [at.rates for at in self._present if not at.second]
        return sum(map(statistics.median, each)) if each and all(each) else None

    def extents(self, step: float = math.inf) -> dict[str, Extent]:
        """Every value's extent up to `step` by its name: "loss", the mean of the ranks' losses at
        each step; "eval:accuracy", of an evaluation; other names as they were logged, of the first
        rank that has them."""
        found = {name: _extent(self._values(name), step, self._further(name))
                 for name in dict.fromkeys(name for at in self._present
                                           for name, values in at.values.items() if values)}
        logged = found.pop(_LOGGED_LOSS, None)
        return found if logged is None else {LOSS: logged} | found

    def curve(self, name: str) -> Mapping[int, float]:
        """Step → value, of a name in `extents`; empty of another."""
        there = any(at.values.get(name) for at in self._present)
        return self._values(name if there else _LOGGED_LOSS)

    def _values(self, name: str) -> Mapping[int, float]:
        found = [at.values[name] for at in self._present if at.values.get(name)]
        if name != LOSS or len(found) < 2:
            return found[0] if found else {}
        # Of the last steps some ranks may not have told theirs yet; an attempt before may have had
        # fewer ranks.
        last, each = min(map(max, found)), dict[int, list[float]]()
        for values in found:
            for step, value in values.items():
                if step <= last:
                    each.setdefault(step, []).append(value)
        return {step: sum(values) / len(values) for step, values in each.items()}

    def _further(self, name: str) -> Sequence[tuple[int, float]]:
        return next((at.further.get(name, ()) for at in self._present if at.values.get(name)), ())

    @staticmethod
    def _step(at: _Rank, event: Step) -> None:
        first = event.step - event.n + 1
        if at.fresh:  # the attempt before got further than where this one goes on from
            at.fresh = False
            for values in at.values.values():
                for step in [s for s in values if s >= first]:
                    del values[step]
            for name, pairs in at.further.items():
                at.further[name] = [pair for pair in pairs if pair[0] < first]
        losses = at.values.setdefault(LOSS, {})
        if event.losses:
            losses.update(enumerate(event.losses, event.step - len(event.losses) + 1))
        elif event.loss is not None:  # too many steps to tell each: their mean, and the last
            losses[event.step] = event.loss if event.loss_last is None else event.loss_last

    @staticmethod
    def _named(at: _Rank, step: int | None, values: Mapping[str, float | None], prefix: str
               ) -> None:
        for name, value in values.items():
            if value is not None:
                full = prefix + name if prefix + name != LOSS else _LOGGED_LOSS
                known = at.values.setdefault(full, {})
                # Without a step it comes after the one before, whatever step that was of.
                n = step if step is not None else next(reversed(known), -1) + 1
                if n in known:
                    further = at.further.setdefault(full, [])
                    if n <= at.told.get(full, -1):
                        further.append((n, known[n]))
                    else:  # an earlier attempt's, which this one makes again
                        further[:] = [pair for pair in further if pair[0] < n]
                known[n], at.told[full] = value, max(n, at.told.get(full, -1))


def _extent(every: Mapping[int, float], step: float, further: Iterable[tuple[int, float]]
            ) -> Extent:
    values = {at: value for at, value in every.items() if at <= step}
    finite = [v for v in (*values.values(), *(v for at, v in further if at <= step))
              if math.isfinite(v)]
    return Extent(min(finite, default=None), max(finite, default=None),
                  values[max(values)] if values else None)
