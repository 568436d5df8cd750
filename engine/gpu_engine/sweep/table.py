"""A sweep summed up: a line for each combination of values, the best one first; and as text, for
the command line and the panel. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.events.track import Extent
from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Rung

DONE, RUNNING, WAITING, FAILED, STOPPED = "done", "running", "waiting", "failed", "stopped"
_KIND = {"completed": DONE, "queued": WAITING, "starting": RUNNING, "running": RUNNING,
         "stopping": RUNNING, "stopped": STOPPED}
"""State of a run → what it counts as; any other has failed."""
LONGEST = 24
"""Characters of a value."""
_NAMED = 6
"""Runs with the same cause that are named."""


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
    """The first cause of a failure, or why it was stopped, in one line."""
    seconds: float | None = None
    """What its attempts took."""
    steps: int | None = None
    extents: dict[str, Extent] = field(default_factory=dict)
    samples_per_s: float | None = None
    """Examples a second of all its ranks."""
    exact: bool = True
    """False: so much is recorded that only parts were read."""
    rungs: tuple[Rung, ...] = ()
    """Where it stood when members were compared."""
    by_hand: bool = False
    """Whether somebody has stopped it, and no comparison."""

    @property
    def kind(self) -> str:
        """done, running, waiting, failed or stopped."""
        return _KIND.get(self.state, FAILED)

    def best(self, by: By) -> float | None:
        """Its best value; None if it has none, or its last one is not finite."""
        return by.best(self.extents)

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
    samples_per_s: float | None
    """Examples a second of those, the mean."""

    @property
    def counts(self) -> dict[str, int]:
        """How many of its runs are done, running, …; without those of which there are none."""
        return count(one.state for one in self.members)


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


def best(members: Sequence[One], by: By) -> tuple[One, float] | None:
    """The member with the best value and that value: of those that are done, if one of them has
    one."""
    known = [(one, value) for one in members if (value := one.best(by)) is not None]
    return min([pair for pair in known if pair[0].kind == DONE] or known, default=None,
               key=lambda pair: -pair[1] if by.largest else pair[1])


def stat(values: Sequence[float | None]) -> Stat:
    """The mean and the spread of those values that are known."""
    known = [v for v in values if v is not None]
    finite = [v for v in known if math.isfinite(v)]
    return Stat(len(finite), statistics.fmean(finite) if finite else None,
                statistics.stdev(finite) if len(finite) > 1 else None, len(known) - len(finite))


def count(states: Iterable[str]) -> dict[str, int]:
    """How many runs in these states are done, running, waiting, failed and stopped, in this order;
    without those of which there are none."""
    counts = Counter(_KIND.get(state, FAILED) for state in states)
    return {kind: counts[kind] for kind in (DONE, RUNNING, WAITING, FAILED, STOPPED)
            if counts[kind]}


def failures(members: Iterable[One], kind: str = FAILED) -> list[tuple[str, list[One]]]:
    """(cause, the members that failed of it, or were STOPPED), the most frequent first."""
    out: dict[str, list[One]] = {}
    for one in members:
        if one.kind == kind and (one.why or kind == FAILED):
            out.setdefault(one.why or one.state, []).append(one)
    return sorted(out.items(), key=lambda pair: -len(pair[1]))


def causes(members: Sequence[One]) -> list[tuple[str, str]]:
    """FAILED or STOPPED, and of whom and why in one line: "1 failed (61f8): rank 0: boom"."""
    return [(kind, f"{len(whose)} {kind} ({', '.join(one.id for one in whose[:_NAMED])}"
                   f"{', …' * (len(whose) > _NAMED)}): {why}")
            for kind in (FAILED, STOPPED) for why, whose in failures(members, kind)]


def names(members: Iterable[One]) -> list[str]:
    """The values that any of them has recorded."""
    return list(dict.fromkeys(name for one in members for name in one.extents))


def named(members: Sequence[One]) -> str:
    """The first of these names for people, and how many more there are."""
    there, most = names(members), 30
    more = len(there) - most
    return ", ".join(there[:most]) + (f" and {more:,} more" if more > 0 else "")


def parse_by(text: str, members: Sequence[One]) -> By:
    """The value that `loss`, `eval:accuracy`, `max:eval:accuracy` means. Raises UserError if no
    member has recorded it."""
    how, colon, rest = text.partition(":")
    largest = colon == ":" and how == "max"
    name = rest if colon and how in ("max", "min") else text
    there = names(members)
    if name not in there and there:
        raise UserError(f"--by {text}: no run of the sweep has recorded {name!r}; there are "
                        f"{named(members)}")
    return By(name, largest)


def _point(group: Sequence[One], by: By) -> Point:
    done = [one for one in group if one.kind == DONE]
    counted = done or [one for one in group if one.best(by) is not None]
    steps = [one.steps for one in counted if one.steps is not None]
    times = [one.seconds for one in counted if one.seconds is not None]
    rates = [one.samples_per_s for one in counted if one.samples_per_s is not None]
    return Point(group[0].values, tuple(group), stat([one.best(by) for one in counted]),
                 stat([one.last(by) for one in counted]), not done,
                 (min(steps), max(steps)) if steps else None,
                 statistics.fmean(times) if times else None,
                 statistics.fmean(rates) if rates else None)


# --- as text -------------------------------------------------------------------------------------

def short(keys: Sequence[str]) -> list[str]:
    """The keys by their last words, where these tell them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return [one if last.count(one) == 1 else key for one, key in zip(last, keys, strict=True)]


def assigned(values: Mapping[str, str]) -> str:
    """"lr=3e-4 batch.size=64"."""
    return " ".join(f"{key}={clean(value, 16)}" for key, value in zip(
        short(list(values)), values.values(), strict=True))


def heads(keys: Sequence[str], by: By) -> list[str]:
    """What stands above the columns."""
    return [*short(keys), "runs", f"best {by.name}", "last", "steps", "time", "examples/s"]


def cells(point: Point) -> list[str]:
    """A line of the table."""
    return [*(clean(v, LONGEST) for v in point.values.values()), _counted(point),
            ("~" if point.partial and point.best.mean is not None else "") + _figure(point.best),
            _figure(point.last), units.count(point.steps[1] if point.steps else None),
            units.clock(point.seconds), rate(point.samples_per_s)]


def rate(samples_per_s: float | None) -> str:
    """"1,234", or "12.3" below a hundred."""
    if samples_per_s is None:
        return units.UNKNOWN
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def summary(of: int, members: Sequence[One], to_come: int = 0, *, asks: bool = True) -> str:
    """"12 of 16 done, 1 failed": how many of the members that were to be submitted. `to_come`: how
    many more a search may ask for, if it still `asks`."""
    counts = count(one.state for one in members)
    words = [f"{counts.pop(DONE, 0)} of {of + to_come} done",
             *(f"{n} {kind}" for kind, n in counts.items())]
    missing = of - len(members)  # removed, or never submitted
    return ", ".join([*words, *([f"{missing} not there"] if missing > 0 else []),
                      *([f"{to_come} {'to come' if asks else 'not tried'}"] if to_come else [])])


def best_text(members: Sequence[One], by: By) -> str:
    """"best loss 3.094: run 3f2a (lr 1e-3)"; "" if none has a value."""
    if (found := best(members, by)) is None:
        return ""
    one, value = found
    values = [f"{key} {clean(value, LONGEST)}" for key, value in zip(
        short(list(one.values)), one.values.values(), strict=True)]
    values += [f"number {one.repeat}"] if one.repeat is not None else []
    return f"best {by.name} {units.loss(value)}: run {one.id}" + (
        f" ({', '.join(values)})" if values else "")


def _counted(point: Point) -> str:
    """"3 done", "1 done, 2 failed"."""
    return ", ".join(f"{n} {kind}" for kind, n in point.counts.items())


def _figure(stat: Stat) -> str:
    """"0.123 ± 0.004 (3)": mean, sample standard deviation, and of how many runs."""
    if stat.mean is None:
        return "NaN" if stat.odd else units.UNKNOWN
    text = units.loss(stat.mean)
    return text if stat.spread is None else f"{text} ± {units.loss(stat.spread)} ({stat.n})"


def notes(points: Sequence[Point], by: By, of: int) -> list[str]:
    """What the figures are, in sentences. `of`: how many members were to be submitted."""
    out, members = list[str](), [one for point in points for one in point.members]
    if lack := max(of - len(members), 0):
        out.append(f"{units.counted(lack, 'run')} not there: removed, or never submitted, as where "
                   "gpu-engine run was killed; run --grid with the values that lack submits them")
    if by.name not in names(members) and names(members):
        out.append(f"no run has recorded {by.name!r}; there are {named(members)}")
    for level in range(max((len(one.rungs) for one in members), default=0)):
        there = [one.rungs[level] for one in members if len(one.rungs) > level]
        if all(rung.best is None for rung in there) and not any(
                one.kind in (RUNNING, WAITING) and len(one.rungs) <= level for one in members):
            out.append(f"at {units.share(there[0].share)} of their time or steps no run had a "
                       "value to be compared by: all of them go on")
    if any(p.best.spread is not None for p in points):
        out.append("mean ± sample standard deviation (number of runs)")
    if any(p.partial and p.best.mean is not None for p in points):
        out.append("~ no run with these values is done: as far as they have got")
    odd = sum(p.last.odd for p in points)
    if odd:
        out.append(f"{units.counted(odd, 'run')} ended with a {by.name} that is not finite; "
                   "means leave it out")
    if not all(one.exact for one in members):
        out.append("of the largest runs only parts of the events were read: their best may be "
                   "slightly off")
    return out
