"""A series in bounded memory: buckets with the least, the greatest and the mean of their values.

A mean alone would hide a spike of one step, so each bucket keeps both extremes. When the buckets
run out, neighbours are merged and the stride doubles. So adding stays O(1), and a series of a
million steps takes no more memory than one of two thousand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf, isfinite, nan
from operator import add, lt

CAPACITY = 2048
"""The most buckets of a series; a power of two. A screen has about 300 columns of braille dots."""
_NOTHING = (array("d", [inf]), array("d", [-inf]), array("d", [0.0]), array("q", [0]),
            array("q", [0]))
"""A bucket without values."""
Part = tuple[int, float, float, float, int, int, int]
"""Values of one bucket: the greatest x, the least and the greatest of the finite values, their sum
and number; how many are not finite, and the x of the first of these."""


def rising(xs: Sequence[int]) -> bool:
    """Whether each of `xs` is greater than the one before."""
    return isinstance(xs, range) or all(map(lt, xs, islice(xs, 1, None)))


def parts(xs: Sequence[int], values: Sequence[float], stride: int,
          los: Sequence[float] | None = None, his: Sequence[float] | None = None) -> list[Part]:
    """Gather values at `xs`, which never fall, by buckets of `stride`. `los` and `his` as in
    `Series.add_rising`."""
    found: list[Part] = []
    begin, end = 0, len(xs)
    while begin < end:
        upto = bisect_left(xs, (xs[begin] // stride + 1) * stride, begin)
        chunk = values[begin:upto]
        low = chunk if los is None else (*chunk, *los[begin:upto])
        high = chunk if his is None else (*chunk, *his[begin:upto])
        total = sum(chunk)
        if isfinite(total) and (low is chunk or isfinite(sum(low) + sum(high))):
            found.append((xs[upto - 1], min(low), max(high), total, upto - begin, 0, -1))
        else:
            found.append(_odd_part(xs[begin:upto], chunk, los and los[begin:upto],
                                   his and his[begin:upto]))
        begin = upto
    return found


def _odd_part(xs: Sequence[int], values: Sequence[float], los: Sequence[float] | None,
              his: Sequence[float] | None) -> Part:
    """Values of one bucket of which some may not be finite."""
    known = [i for i, value in enumerate(values) if isfinite(value)]
    good = [values[i] for i in known]
    low = good if los is None else good + [los[i] for i in known if isfinite(los[i])]
    high = good if his is None else good + [his[i] for i in known if isfinite(his[i])]
    each = [column for column in (values, los, his) if column is not None]
    bad = [xs[i] for i in range(len(xs)) if not all(isfinite(column[i]) for column in each)]
    return (xs[-1], min(low, default=inf), max(high, default=-inf), sum(good), len(good),
            len(bad), bad[0] if bad else -1)


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
        self.add_rising([x], [value], None if lo is None else [lo], None if hi is None else [hi])

    def add_rising(self, xs: Sequence[int], values: Sequence[float],
                   los: Sequence[float] | None = None,
                   his: Sequence[float] | None = None) -> None:
        """Add many values at once, at `xs` that never fall. `los` and `his`: each value is the mean
        of several, of which these are the least and the greatest."""
        self.add_parts(parts(xs, values, self.fit(xs[0], xs[-1]), los, his))

    def fit(self, first: int, last: int) -> int:
        """Make room for values from `first` to `last`. Returns how many x a bucket then has."""
        self._bucket(first)
        self._bucket(last)
        return self.stride

    def add_parts(self, found: Sequence[Part]) -> None:
        """Add values that are gathered already, at rising x, in buckets no wider than those
        here."""
        stride = self.fit(found[0][0], found[-1][0])
        self.version += 1
        first, los, his, totals, counts = self.first, self.lo, self.hi, self.total, self.count
        for x, lo, hi, total, count, bad, bad_at in found:
            i = x // stride - first
            if lo < los[i]:
                los[i] = lo
            if hi > his[i]:
                his[i] = hi
            totals[i] += total
            counts[i] += count
            if bad:
                self.bad[i] += bad
                if self.bad_at is None or bad_at < self.bad_at:
                    self.bad_at = bad_at
        last = found[-1][0]
        if self.last is None or last > self.last:
            self.last = last

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

    def buckets(self) -> Iterator[tuple[int, float, float, float]]:
        """(x in its middle, least, mean, greatest) of each bucket that has a value."""
        for x in range(self.first * self.stride, (self.last or 0) + 1, self.stride):
            found = self.at(x)
            if found is not None:
                yield min(x + (self.stride - 1) // 2, self.last or 0), *found

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
        for column, none in zip(self._columns(), _NOTHING, strict=True):
            column.extend(none * (i + 1 - size))
        return i

    def _insert(self, many: int) -> None:
        """Add empty buckets at the front, as another rank may have started at an earlier step."""
        for column, none in zip(self._columns(), _NOTHING, strict=True):
            column[:0] = none * many
        self.first -= many

    def _halve(self) -> None:
        odd = self.first % 2
        if odd:
            self._insert(1)
        if len(self.lo) % 2:
            for column, none in zip(self._columns(), _NOTHING, strict=True):
                column.extend(none)
        for column, joined in zip(self._columns(), (min, max, add, add, add), strict=True):
            column[:] = array(column.typecode, map(joined, column[::2], column[1::2]))
        self.stride *= 2
        self.first //= 2
