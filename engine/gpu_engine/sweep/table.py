"""A sweep summed up: a line for each combination of values, the best one first. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_engine.common.errors import UserError
from gpu_engine.sweep.track import LOSS, Extent

DONE, RUNNING, WAITING, FAILED, STOPPED = "done", "running", "waiting", "failed", "stopped"
_KIND = {"completed": DONE, "queued": WAITING, "starting": RUNNING, "running": RUNNING,
         "stopping": RUNNING, "stopped": STOPPED}
"""State of a run → what it counts as; any other has failed."""


@dataclass(frozen=True, slots=True)
class By:
    """The value that decides which point is best."""

    name: str = LOSS
    largest: bool = False
    """Whether the greatest is the best."""

    @property
    def text(self) -> str:
        """As `parse_by` reads it."""
        return ("max:" if self.largest else "") + self.name


@dataclass(frozen=True, slots=True)
class One:
    """A member and how it did."""

    id: str
    """The run's id."""
    index: int
    values: dict[str, str]
    repeat: int | None
    name: str
    state: str
    why: str | None = None
    """The first cause of a failure, in one line."""
    seconds: float | None = None
    """What its attempts took."""
    steps: int | None = None
    extents: dict[str, Extent] = field(default_factory=dict)
    exact: bool = True
    """False: so much is recorded that only parts were read."""

    @property
    def kind(self) -> str:
        """done, running, waiting, failed or stopped."""
        return _KIND.get(self.state, FAILED)

    def best(self, by: By) -> float | None:
        """Its best value; None if it has none that is finite."""
        found = self.extents.get(by.name)
        return None if found is None else found.greatest if by.largest else found.least

    def last(self, by: By) -> float | None:
        """Its last value."""
        found = self.extents.get(by.name)
        return None if found is None else found.last


@dataclass(frozen=True, slots=True)
class Stat:
    """What several runs with the same values have in common."""

    n: int
    """How many runs it is of."""
    mean: float | None
    """Of the finite values; None if there is none."""
    spread: float | None
    """Their sample standard deviation, with n - 1; None of fewer than two."""
    odd: int = 0
    """How many had a value that was not finite; these are left out of the others."""


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values."""

    values: dict[str, str]
    members: tuple[One, ...]
    best: Stat
    last: Stat
    partial: bool
    """Whether none of its runs is done, and the figures are of those that got so far."""
    steps: tuple[int, int] | None
    """The least and the greatest number of steps of the runs that the figures are of."""
    seconds: float | None
    """What those took, the mean."""

    @property
    def counts(self) -> dict[str, int]:
        """How many of its runs are done, running, …; without those of which there are none."""
        return count(self.members)


def points(members: Iterable[One], by: By) -> list[Point]:
    """The lines of the table, the best first, those without a value last, in the order of the grid.
    """
    groups: dict[tuple[str, ...], list[One]] = {}
    for one in sorted(members, key=lambda m: m.index):
        groups.setdefault(tuple(one.values.values()), []).append(one)
    found = [_point(group, by) for group in groups.values()]
    known = [p for p in found if p.best.mean is not None]
    known.sort(key=lambda p: -(p.best.mean or 0.0) if by.largest else p.best.mean or 0.0)
    return [*known, *(p for p in found if p.best.mean is None)]


def stat(values: Sequence[float | None]) -> Stat:
    """The mean and the spread of those values that are known."""
    known = [v for v in values if v is not None]
    finite = [v for v in known if math.isfinite(v)]
    return Stat(len(finite), statistics.fmean(finite) if finite else None,
                statistics.stdev(finite) if len(finite) > 1 else None, len(known) - len(finite))


def count(members: Iterable[One]) -> dict[str, int]:
    """How many are done, running, waiting, failed and stopped, in this order."""
    counts = Counter(one.kind for one in members)
    return {kind: counts[kind] for kind in (DONE, RUNNING, WAITING, FAILED, STOPPED)
            if counts[kind]}


def failures(members: Iterable[One]) -> list[tuple[str, list[One]]]:
    """(cause, the members that failed of it), the most frequent first."""
    out: dict[str, list[One]] = {}
    for one in members:
        if one.kind == FAILED:
            out.setdefault(one.why or one.state, []).append(one)
    return sorted(out.items(), key=lambda pair: -len(pair[1]))


def names(members: Iterable[One]) -> list[str]:
    """The values that any of them has recorded."""
    return list(dict.fromkeys(name for one in members for name in one.extents))


def parse_by(text: str, members: Sequence[One]) -> By:
    """The value that `loss`, `eval:accuracy`, `max:eval:accuracy` means. Raises UserError if no
    member has recorded it."""
    how, colon, rest = text.partition(":")
    largest = colon == ":" and how == "max"
    name = rest if colon and how in ("max", "min") else text
    there = names(members)
    if name not in there and there:
        raise UserError(f"--by {text}: no run of the sweep has recorded {name!r}; there are "
                        + ", ".join(there[:30]))
    return By(name, largest)


def _point(group: Sequence[One], by: By) -> Point:
    done = [one for one in group if one.kind == DONE]
    counted = done or [one for one in group if one.best(by) is not None]
    steps = [one.steps for one in counted if one.steps is not None]
    times = [one.seconds for one in counted if one.seconds is not None]
    return Point(group[0].values, tuple(group), stat([one.best(by) for one in counted]),
                 stat([one.last(by) for one in counted]), not done,
                 (min(steps), max(steps)) if steps else None,
                 statistics.fmean(times) if times else None)
