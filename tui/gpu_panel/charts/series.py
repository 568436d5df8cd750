"""Series in bounded memory: buckets that keep the least, the greatest and the mean of their values.

A mean alone would hide a spike of one step, so each bucket keeps both extremes. When the buckets
run out, neighbours are merged and the stride doubles. So adding stays O(1), and a series of a
million steps takes no more memory than one of two thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from operator import add

CAPACITY = 2048
"""The most buckets of a series; a power of two. A screen has about 300 columns of braille dots."""


class Series:
    """Values over whole numbers x (steps or seconds), where x mostly rises.

    Bucket i covers `stride` numbers from x = (first + i) × stride. `lo`, `hi`, `total` and `count`
    are those of its finite values; `bad` counts its other values, which change no bound.
    """

    __slots__ = ("bad", "bad_at", "capacity", "count", "first", "hi", "last", "lo", "stride",
                 "total", "version")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.version = 0
        self._empty()

    def _empty(self) -> None:
        self.stride, self.first = 1, 0
        self.last: int | None = None
        """The greatest x."""
        self.bad_at: int | None = None
        """The least x with a value that is not finite."""
        self.lo: array[float] = array("d")
        self.hi: array[float] = array("d")
        self.total: array[float] = array("d")
        self.count: array[int] = array("q")
        self.bad: array[int] = array("q")

    def __len__(self) -> int:
        """The number of buckets in use."""
        return len(self.lo)

    def add(self, x: int, value: float, lo: float | None = None, hi: float | None = None) -> None:
        """Add one value at x >= 0, or the mean of several with their least and greatest value."""
        i = self._bucket(x)
        self.version += 1
        if self.last is None or x > self.last:
            self.last = x
        if isfinite(value):
            low = value if lo is None or not isfinite(lo) else min(lo, value)
            high = value if hi is None or not isfinite(hi) else max(hi, value)
            if low < self.lo[i]:
                self.lo[i] = low
            if high > self.hi[i]:
                self.hi[i] = high
            self.total[i] += value
            self.count[i] += 1
        if not isfinite(value) or (lo is not None and not isfinite(lo)) \
                or (hi is not None and not isfinite(hi)):
            self.bad[i] += 1
            if self.bad_at is None or x < self.bad_at:
                self.bad_at = x

    def add_several(self, x: int, values: Sequence[float]) -> None:
        """Add finite values that belong to the bucket of x, the greatest of their x."""
        i = self._bucket(x)
        self.version += 1
        if self.last is None or x > self.last:
            self.last = x
        low, high = min(values), max(values)
        if low < self.lo[i]:
            self.lo[i] = low
        if high > self.hi[i]:
            self.hi[i] = high
        self.total[i] += sum(values)
        self.count[i] += len(values)

    def cut(self, x: int) -> None:
        """Remove the values at x and after it; all of a bucket that x is in."""
        if self.last is None or x > self.last:
            return
        self.version += 1
        keep = x // self.stride - self.first
        if keep <= 0:
            self._empty()
            return
        for column in self._columns():
            del column[keep:]
        while self.count and not self.count[-1] and not self.bad[-1]:
            for column in self._columns():
                column.pop()
        if not self.count:
            self._empty()
            return
        self.last = (self.first + len(self)) * self.stride - 1
        if self.bad_at is not None and self.bad_at > self.last:
            self.bad_at = None

    def at(self, x: int) -> tuple[float, float, float] | None:
        """(least, mean, greatest) of the bucket that holds x. All NaN if none of its values is
        finite; None if it has no value."""
        i = x // self.stride - self.first
        if not 0 <= i < len(self) or not (self.count[i] or self.bad[i]):
            return None
        if not self.count[i]:
            return nan, nan, nan
        return self.lo[i], self.total[i] / self.count[i], self.hi[i]

    @property
    def start(self) -> int | None:
        """The least x, rounded down to the start of its bucket."""
        return self.first * self.stride if len(self) else None

    def _columns(self) -> tuple[array, ...]:
        return self.lo, self.hi, self.total, self.count, self.bad

    def _bucket(self, x: int) -> int:
        """The index of the bucket for x, which is created if it is missing."""
        if not self.lo:
            self.first = x // self.stride
        i = x // self.stride - self.first
        size = len(self.lo)
        if 0 <= i < size:
            return i
        while (i >= self.capacity if i >= 0 else size - i > self.capacity):
            self._halve()
            i, size = x // self.stride - self.first, len(self.lo)
        if i < 0:
            self._insert(-i)
            return 0
        for _ in range(i + 1 - size):
            self.lo.append(inf)
            self.hi.append(-inf)
            self.total.append(0.0)
            self.count.append(0)
            self.bad.append(0)
        return i

    def _insert(self, many: int) -> None:
        """Add empty buckets at the front, as another rank may have started at an earlier step."""
        self.lo = array("d", [inf]) * many + self.lo
        self.hi = array("d", [-inf]) * many + self.hi
        self.total = array("d", [0.0]) * many + self.total
        self.count = array("q", [0]) * many + self.count
        self.bad = array("q", [0]) * many + self.bad
        self.first -= many

    def _halve(self) -> None:
        odd = self.first % 2
        if odd:
            self._insert(1)
        if len(self.lo) % 2:
            for column, none in zip(self._columns(), (inf, -inf, 0.0, 0, 0), strict=True):
                column.append(none)
        self.lo = array("d", map(min, self.lo[::2], self.lo[1::2]))
        self.hi = array("d", map(max, self.hi[::2], self.hi[1::2]))
        self.total = array("d", map(add, self.total[::2], self.total[1::2]))
        self.count = array("q", map(add, self.count[::2], self.count[1::2]))
        self.bad = array("q", map(add, self.bad[::2], self.bad[1::2]))
        self.stride *= 2
        self.first //= 2


@dataclass(slots=True)
class _Position:
    """Where one rank is: its attempt, how often it went back to an earlier step within that
    attempt, and its last step."""

    attempt: int = 1
    rewinds: int = 0
    last: int = -1

    @property
    def generation(self) -> tuple[int, int]:
        """Orders the values of one step: those of a later generation replace earlier ones."""
        return self.attempt, self.rewinds


@dataclass(slots=True)
class RankSeries:
    """A series for each rank, and `all`, a series over all ranks with their least, greatest and
    mean value.

    When a rank goes back to an earlier step, the new values replace the old ones from there on. In
    `all`, the first rank that goes back cuts the series; older values of other ranks beyond that
    step are then left out, in whatever order the ranks' files are read.
    """

    ranks: dict[int, Series] = field(default_factory=dict)
    all: Series = field(default_factory=Series)
    _positions: dict[int, _Position] = field(default_factory=dict)
    _generation: tuple[int, int] = (0, 0)
    _cuts: list[tuple[tuple[int, int], int]] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Rises when a value is added."""
        return self.all.version

    def begin(self, rank: int, attempt: int) -> None:
        """Note that a rank starts an attempt."""
        position = self._positions.setdefault(rank, _Position())
        position.attempt, position.rewinds, position.last = max(attempt, 1), 0, -1

    def add(self, rank: int, step: int, values: Iterable[float]) -> None:
        """Add the losses of consecutive steps, the last of them at `step`."""
        values = list(values)
        for at, value in enumerate(values, step - len(values) + 1):
            if at >= 0:
                self.put(rank, at, value)

    def put(self, rank: int, step: int, value: float, lo: float | None = None,
            hi: float | None = None) -> None:
        """Add one value, or the mean of several with their least and greatest value."""
        position = self._positions.get(rank)
        if position is None:
            position = self._positions[rank] = _Position()
        series = self.ranks.get(rank)
        if series is None:
            series = self.ranks[rank] = Series()
            self.ranks = dict(sorted(self.ranks.items()))
        if series.last is not None and step <= series.last:
            series.cut(step)
        if step <= position.last:
            position.rewinds += 1
        position.last = step
        series.add(step, value, lo, hi)
        generation = position.generation
        if generation > self._generation:
            self._generation = generation
            self._cuts = [c for c in self._cuts if c[1] < step] + [(generation, step)]
            self.all.cut(step)
        elif generation < self._generation \
                and any(generation < new and step >= cut for new, cut in self._cuts):
            return
        self.all.add(step, value, lo, hi)
