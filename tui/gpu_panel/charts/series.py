"""Series in bounded memory: a pyramid of buckets, each with the least, the greatest and the mean.

A mean alone would hide a spike of one step, so both ends of every bucket are kept. When the
buckets run out, neighbours are joined and the stride doubles: adding stays O(1), a series of a
million steps takes no more room than one of two thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from operator import add

CAPACITY = 2048
"""Buckets; a power of two. A screen has some 300 columns of braille dots."""


class Series:
    """Values over whole numbers x (steps, or seconds), x mostly rising.

    `lo`, `hi`, `total`, `count` are of the finite values in a bucket; `bad` counts the others,
    which are marked and never touch a bound. Bucket i covers x from (first + i) × stride.
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
        """Where the first value came that was not finite."""
        self.lo: array[float] = array("d")
        self.hi: array[float] = array("d")
        self.total: array[float] = array("d")
        self.count: array[int] = array("q")
        self.bad: array[int] = array("q")

    def __len__(self) -> int:
        """Buckets in use."""
        return len(self.lo)

    def add(self, x: int, value: float, lo: float | None = None, hi: float | None = None) -> None:
        """Take in one value at x >= 0, or the mean of several with their least and greatest."""
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

    def cut(self, x: int) -> None:
        """Forget x and all that came after it. A bucket that x lies within goes whole."""
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
        """(least, mean, greatest) of the bucket that holds x; NaN where none is finite; None
        where nothing was ever added."""
        i = x // self.stride - self.first
        if not 0 <= i < len(self) or not (self.count[i] or self.bad[i]):
            return None
        if not self.count[i]:
            return nan, nan, nan
        return self.lo[i], self.total[i] / self.count[i], self.hi[i]

    @property
    def start(self) -> int | None:
        """The least x, to a bucket's width."""
        return self.first * self.stride if len(self) else None

    def _columns(self) -> tuple[array, ...]:
        return self.lo, self.hi, self.total, self.count, self.bad

    def _bucket(self, x: int) -> int:
        """The index of x's bucket, made where it is missing."""
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
        """Room for x before the first: another rank may have begun earlier."""
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
class _Place:
    """Where one rank is: which attempt, how often it went back within it, its last step."""

    attempt: int = 1
    rewinds: int = 0
    last: int = -1

    @property
    def generation(self) -> tuple[int, int]:
        """Orders what is known of one step: the later one replaces the earlier."""
        return self.attempt, self.rewinds


@dataclass(slots=True)
class RankSeries:
    """One series a rank, and `all` over the ranks: their least, greatest and mean.

    A step that goes back replaces what followed it. In `all` the first rank of an attempt to
    come back cuts, and what other ranks' files still hold of the earlier attempt beyond that
    point is left out, in whatever order the files are read.
    """

    ranks: dict[int, Series] = field(default_factory=dict)
    all: Series = field(default_factory=Series)
    _places: dict[int, _Place] = field(default_factory=dict)
    _generation: tuple[int, int] = (0, 0)
    _cuts: list[tuple[tuple[int, int], int]] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Rises when a value is added."""
        return self.all.version

    def begin(self, rank: int, attempt: int) -> None:
        """The rank starts (again)."""
        place = self._places.setdefault(rank, _Place())
        place.attempt, place.rewinds, place.last = max(attempt, 1), 0, -1

    def add(self, rank: int, step: int, values: Iterable[float]) -> None:
        """Losses of consecutive steps, the last of them at `step`."""
        values = list(values)
        for at, value in enumerate(values, step - len(values) + 1):
            if at >= 0:
                self.put(rank, at, value)

    def put(self, rank: int, step: int, value: float, lo: float | None = None,
            hi: float | None = None) -> None:
        """One value, or the mean of several with their least and greatest."""
        place = self._places.get(rank)
        if place is None:
            place = self._places[rank] = _Place()
        series = self.ranks.get(rank)
        if series is None:
            series = self.ranks[rank] = Series()
            self.ranks = dict(sorted(self.ranks.items()))
        if series.last is not None and step <= series.last:
            series.cut(step)
        if step <= place.last:
            place.rewinds += 1
        place.last = step
        series.add(step, value, lo, hi)
        generation = place.generation
        if generation > self._generation:
            self._generation = generation
            self._cuts = [c for c in self._cuts if c[1] < step] + [(generation, step)]
            self.all.cut(step)
        elif generation < self._generation \
                and any(generation < new and step >= cut for new, cut in self._cuts):
            return
        self.all.add(step, value, lo, hi)
