"""Reduces a series to columns of dots, and scales it to them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, inf, isfinite, log10

from gpu_engine.common import units
from gpu_engine.common.series import Series
from gpu_engine.common.ticks import step_ticks, ticks
from gpu_panel.charts.braille import Point

FLAT = 1e-3
"""A range narrower than this share of its middle is drawn as a flat line, not enlarged to noise."""

_MANY = 24
"""Columns from which on noise can be told from a curve."""
_SETTLED = 8
"""Columns of a curve from which on its beginning is no more than a beginning."""
_FEW = 3
"""So few curves that none of them is the odd one."""
_MOST = 1e300
"""The largest value that is drawn: beyond it, differences of floats overflow."""


@dataclass(slots=True)
class ColumnValues:
    """A series reduced to the columns of a chart. In a column without values, lo is inf, hi is
    -inf and mean is None."""

    lo: list[float]
    hi: list[float]
    mean: list[float | None]
    bad: frozenset[int]
    """Columns with values that were not finite."""

    def bounds(self) -> tuple[float, float]:
        return min(self.lo, default=inf), max(self.hi, default=-inf)

    def least_positive(self) -> float:
        """The least value above 0, for a logarithmic scale; inf if there is none."""
        return min((v for v in (*self.lo, *(m for m in self.mean if m is not None)) if v > 0),
                   default=inf)


def reduce(series: Series, x0: float, x1: float, width: int) -> ColumnValues:
    """`series` from x0 to x1 in `width` columns of dots, each with its least and greatest value."""
    lo, hi = [inf] * width, [-inf] * width
    mean: list[float | None] = [None] * width
    bad: set[int] = set()
    stride, first = series.stride, series.first
    scale = (width - 1) / max(x1 - x0, 1e-9)
    middle = (first + 0.5) * stride - 0.5 - x0
    start = max(0, floor((x0 - first * stride) / stride))
    stop = min(len(series), floor(x1 / stride) - first + 1)
    edges = [min(max(ceil(((px - 0.5) / scale - middle) / stride), start), stop)
             for px in range(width + 1)]
    for px, (a, b) in enumerate(pairwise(edges)):
        if a >= b:
            continue
        if many := sum(series.count[a:b]):
            lo[px], hi[px] = min(series.lo[a:b]), max(series.hi[a:b])
            mean[px] = sum(series.total[a:b]) / many
        if any(series.bad[a:b]):
            bad.add(px)
    return ColumnValues(lo, hi, mean, frozenset(bad))


def merged(each: Sequence[ColumnValues]) -> ColumnValues:
    """The range and the mean of several series, column by column: the band of many ranks."""
    lo = [min(values) for values in zip(*(c.lo for c in each), strict=True)]
    hi = [max(values) for values in zip(*(c.hi for c in each), strict=True)]
    mean: list[float | None] = []
    for values in zip(*(c.mean for c in each), strict=True):
        known = [v for v in values if v is not None]
        mean.append(sum(known) / len(known) if known else None)
    return ColumnValues(lo, hi, mean, frozenset().union(*(c.bad for c in each)))


def settled(columns: ColumnValues, *, log: bool = False) -> ColumnValues:
    """The columns without the spike that a curve begins with: its first twentieth, where that
    would take more than half of the height from the rest. `log`: of a logarithmic scale."""
    known = [px for px, mean in enumerate(columns.mean) if mean is not None]
    if len(known) < _SETTLED:
        return columns
    cut = known[max(len(known) // 20, 1)]
    low, high = min(columns.lo[cut:]), max(columns.hi[cut:])
    most = high * high / low if log and low > 0 else high + (high - low)
    if not max(columns.hi[:cut]) > most:
        return columns
    return ColumnValues([inf] * cut + columns.lo[cut:], [-inf] * cut + columns.hi[cut:],
                        [None] * cut + columns.mean[cut:], columns.bad)


def capped(columns: ColumnValues, most: float) -> ColumnValues:
    """The columns as a scale that ends at `most` has to show them."""
    if most == inf:
        return columns
    return ColumnValues([v if mean is None else min(v, most)
                         for v, mean in zip(columns.lo, columns.mean, strict=True)],
                        [min(v, most) for v in columns.hi], columns.mean, columns.bad)


def most_shown(low: float, highs: Iterable[float], share: float = 0.5) -> float:
    """The greatest of `highs` that a chart has to show, whose least value is `low`; inf: all. Those
    far above, less than half, are left out where the others would have less than this share of the
    height: one run that diverged would press them flat. Of numbers that are all positive, the
    height is logarithmic."""
    known = sorted(high for high in highs if low <= high < _MOST)
    if len(known) < _FEW or not isfinite(low):
        return inf
    bottom, *places = (log10(v) if low > 0 else v for v in (low, *known))
    for many in range(1, (len(known) + 1) // 2):
        if places[-many - 1] - bottom < share * (places[-1] - bottom):
            return known[-many - 1]
    return inf


def gaps(columns: ColumnValues, most: int) -> frozenset[int]:
    """The columns before which more than `most` columns have no value: nothing is known there, so
    the line must not go through."""
    found, last = set(), None
    for px, mean in enumerate(columns.mean):
        if mean is None:
            continue
        if last is not None and px - last - 1 > most:
            found.add(px)
        last = px
    return frozenset(found)


def smoothed(columns: ColumnValues, weight: float) -> ColumnValues:
    """The columns' means, each the middle of the moving averages from its left and from its right:
    one alone would lag behind a curve that falls."""
    both = zip(_averages(columns.mean, weight),
               reversed(_averages(columns.mean[::-1], weight)), strict=True)
    mean = [None if a is None or b is None else (a + b) / 2 for a, b in both]
    lo = [inf if m is None else m for m in mean]
    hi = [-inf if m is None else m for m in mean]
    return ColumnValues(lo, hi, mean, columns.bad)


def _averages(values: Sequence[float | None], weight: float) -> list[float | None]:
    """The exponential moving average, corrected for the bias at its start."""
    found: list[float | None] = []
    value = mass = 0.0
    for m in values:
        if m is not None:
            value = weight * value + (1 - weight) * m
            mass = weight * mass + (1 - weight)
        found.append(None if m is None else value / mass)
    return found


def odd_one(each: Sequence[Sequence[Point | None]]) -> int | None:
    """The number of the line that is further from the mean of all than any other, by far; None if
    there is none."""
    off = [0.0] * len(each)
    for points in zip(*each, strict=True):
        known = [p[1] for p in points if p is not None]
        middle = sum(known) / len(known) if known else 0.0
        off = [o + (abs(p[1] - middle) if p is not None else 0.0)
               for o, p in zip(off, points, strict=True)]
    *_, second, most = sorted(off)
    return off.index(most) if most > max(2 * second, len(each[0])) else None


def spans_decade(every: Iterable[ColumnValues], before: bool) -> bool:
    """Whether the values are positive and span more than a decade, so that a logarithmic scale
    shows more of them. `before`: whether that was so; then it is until they span clearly less, so
    that the scale does not go to and fro."""
    shown = list(every)
    low = min((c.bounds()[0] for c in shown), default=-inf)
    high = max((c.bounds()[1] for c in shown), default=-inf)
    least = min((c.least_positive() for c in shown), default=inf)
    return low >= 0 and isfinite(high) and high > (8 if before else 10) * least


def is_noisy(points: Sequence[Point | None], before: bool = False) -> bool:
    """Whether a curve goes up and down more than it goes anywhere: its columns are half as far
    from their neighbours, in the median, as the mean of its last quarter is from that of its
    second. (Its first quarter is often a fall from where training began.) `before`: whether that
    was so; then half of that will do, so that the curve does not go to and fro."""
    middle = [p[1] for p in points if p is not None]
    if len(middle) < _MANY:
        return False
    steps = sorted(abs(b - a) for a, b in pairwise(middle))
    quarter = len(middle) // 4
    trend = abs(sum(middle[-quarter:]) - sum(middle[quarter:2 * quarter])) / quarter
    return steps[len(steps) // 2] > max(trend / 2, 2) / (2 if before else 1)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from y0 to y1 to `dots` dots. With `log`, y0 and y1 are decimal logarithms."""

    y0: float
    y1: float
    dots: int
    log: bool = False

    def dot(self, value: float) -> int:
        """The dot of a value, counted from 0 at the bottom, within the scale's edges."""
        if self.log:
            value = log10(value) if value > 0 else -inf
        if value <= self.y0:
            return 0
        if value >= self.y1:
            return self.dots - 1
        return round((value - self.y0) / (self.y1 - self.y0) * (self.dots - 1))

    def points(self, columns: ColumnValues) -> list[Point | None]:
        """The lowest, the middle and the highest dot of each column; None for an empty column."""
        dot, log = self.dot, self.log
        return [None if m is None or (log and high <= 0) else (dot(low), dot(m), dot(high))
                for low, m, high in zip(columns.lo, columns.mean, columns.hi, strict=True)]

    def ticks(self, most: int, unit: float = 1.0) -> list[float]:
        """At most `most` values within the scale that are round numbers of `unit`s."""
        if not self.log:
            return [v * unit for v in ticks(self.y0 / unit, self.y1 / unit, most)]
        exponents = range(floor(self.y0), floor(self.y1) + 1)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            found = [v for e in exponents for f in factors
                     if (v := float(f"{f}e{e}")) > 0
                     and self.y0 - 1e-9 <= log10(v) <= self.y1 + 1e-9]
            if 2 <= len(found) <= most:
                return found
        if len(found) >= 2:
            return found[::ceil(len(found) / max(most, 1))]
        return [v for v in ticks(10 ** self.y0, 10 ** self.y1, most) if v > 0] or found


def scale_of(columns: Iterable[ColumnValues], dots: int, *, log: bool = False, zero: bool = False,
             ) -> Scale | None:
    """The scale that shows all of `columns`; None if no value is finite. `zero`: start at 0."""
    shown = list(columns)
    low = min((c.bounds()[0] for c in shown), default=inf)
    high = max((c.bounds()[1] for c in shown), default=-inf)
    if not (isfinite(low) and isfinite(high)):
        return None
    low, high = max(low, -_MOST), min(high, _MOST)
    if log and high > 0:
        least = min(c.least_positive() for c in shown)
        y0, y1 = log10(min(least, high)), log10(high)
        if y1 - y0 < 2 * FLAT:
            y0, y1 = (y0 + y1) / 2 - 0.1, (y0 + y1) / 2 + 0.1
        return Scale(y0, y1, dots, log=True)
    if zero and low >= 0:
        return Scale(0.0, high * 1.08 or 1.0, dots)
    middle, span = (low + high) / 2, high - low
    if span <= abs(middle) * FLAT:
        room = abs(middle) * 0.05 or 1.0
        # Slightly off the middle, as the middle may lie between two characters.
        return Scale(middle - 0.9 * room, middle + room, dots)
    return Scale(low, high, dots)


@dataclass(frozen=True, slots=True)
class Axes:
    """What a chart's numbers are, and how they are written."""

    y_text: Callable[[float | None], str] = units.loss
    """Formats a value at the crosshair."""
    y_unit: float = 1.0
    """The unit of the numbers along the y axis."""
    unit: str = ""
    """The name of that unit, which stands at the axis."""
    zero: bool = False
    settles: bool = False
    """Whether the spike that a curve begins with may be above the scale, see `settled`."""
    most: float = inf
    """Greater values may be above the scale, see `most_shown`."""
    may_be_log: bool = False
    """Whether the scale is logarithmic by itself where that shows more."""
    x_text: Callable[[int], str] = "{:,}".format
    x_each: int = 1
    """The crosshair stands at multiples of this."""
    x_name: str = "step"
    """The word before an x at the crosshair."""
    x_ticks: Callable[[float, float, int], list[float]] = step_ticks
    x_gap: float | None = None
    """Two values that are further apart than this are not joined, as nothing is known between
    them. None: they always are."""
    empty: str = "nothing yet"
