"""The table of a sweep as text, for the command line and the panel. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.sweep.table import DONE, By, One, Point, Stat, count

LONGEST = 24
"""Characters of a value."""


def short(keys: Sequence[str]) -> list[str]:
    """The keys by their last words, where these tell them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return [one if last.count(one) == 1 else key for one, key in zip(last, keys, strict=True)]


def heads(keys: Sequence[str], by: By) -> list[str]:
    """What stands above the columns."""
    return [*short(keys), "runs", f"best {by.name}", "last", "steps", "time"]


def cells(point: Point) -> list[str]:
    """A line of the table."""
    return [*(clean(v, LONGEST) for v in point.values.values()), counted(point),
            ("~" if point.partial and point.best.mean is not None else "") + figure(point.best),
            figure(point.last), steps(point), units.clock(point.seconds)]


def summary(of: int, members: Sequence[One]) -> str:
    """"12 of 16 done, 1 failed": how many of the members that were to be submitted."""
    counts = count(members)
    words = [f"{counts.pop(DONE, 0)} of {of} done", *(f"{n} {kind}" for kind, n in counts.items())]
    missing = of - len(members)  # removed, or never submitted
    return ", ".join([*words, *([f"{missing} not there"] if missing > 0 else [])])


def counted(point: Point) -> str:
    """"3 done", "1 done, 2 failed"."""
    return ", ".join(f"{n} {kind}" for kind, n in point.counts.items())


def figure(stat: Stat) -> str:
    """"0.123 ± 0.004 (3)": mean, sample standard deviation, and of how many runs."""
    if stat.mean is None:
        return "NaN" if stat.odd else units.UNKNOWN
    text = units.loss(stat.mean)
    return text if stat.spread is None else f"{text} ± {units.loss(stat.spread)} ({stat.n})"


def steps(point: Point) -> str:
    """"500", or "420–500" where its runs differ."""
    if point.steps is None:
        return units.UNKNOWN
    least, most = point.steps
    return units.count(most) if least == most else f"{least:,}–{most:,}"


def notes(points: Sequence[Point], by: By) -> list[str]:
    """What the figures are, in sentences."""
    out = []
    if any(p.best.spread is not None for p in points):
        out.append("mean ± sample standard deviation (number of runs)")
    if any(p.partial and p.best.mean is not None for p in points):
        out.append("~ no run with these values is done: as far as they have got")
    odd = sum(p.last.odd for p in points)
    if odd:
        out.append(f"{odd} run{'s' * (odd > 1)} ended with a {by.name} that is not finite; "
                   "means leave it out")
    if not all(one.exact for p in points for one in p.members):
        out.append("of the largest runs only parts of the events were read: their best may be "
                   "slightly off")
    return out
