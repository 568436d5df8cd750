"""Curves made of others: of several ranks one, and over time in place of steps. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite

from gpu_engine.common.series import Series

_LATEST = 1e14
"""Milliseconds, a few thousand years: a file may hold any time."""


def joined(each: Sequence[Series]) -> Series:
    """One series with the mean, the least and the greatest of all."""
    if len(each) == 1:
        return each[0]
    whole = Series()
    for series in each:
        _add(whole, [(x, mean, low, high) for x, low, mean, high in series.buckets()])
    return whole


def over_time(values: Series, times: Series) -> Series:
    """`values` over milliseconds, each at the time of its step. `times`: the seconds at which steps
    were made; between two of them they are spread evenly."""
    known = [(x, at) for x, _, at, _ in times.buckets() if isfinite(at)]
    steps, made = [x for x, _ in known], Series()
    told, latest = list[tuple[int, float, float, float]](), 0
    for x, low, mean, high in values.buckets() if known else ():
        i = bisect_left(steps, x)
        (x0, t0), (x1, t1) = known[max(i - 1, 0)], known[min(i, len(known) - 1)]
        at = t1 if x1 <= x or i == 0 else t0 + (t1 - t0) * (x - x0) / (x1 - x0)
        latest = max(latest, round(min(at * 1000, _LATEST)))  # a clock may be set back
        told.append((latest, mean, low, high))
    _add(made, told)
    return made


def _add(series: Series, rows: Sequence[tuple[int, float, float, float]]) -> None:
    if rows:
        series.add_rising(*zip(*rows, strict=True))
