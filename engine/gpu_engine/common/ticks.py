"""Round numbers for the axes of a chart, and their texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import ceil, floor, isfinite, log10


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round values (1, 2 or 5 times a power of ten) from low to high."""
    span = high - low
    if most < 1 or not isfinite(span) or span <= 0:
        return []
    power = 10.0 ** floor(log10(span / most))
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [n * step for n in range(first, last + 1)]
    return []


def step_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round step numbers from low to high; only whole ones."""
    return [v for v in ticks(low, high, most) if v == int(v)]


def time_ticks(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round times from low to high, in seconds."""
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200):
        if (high - low) / step < most:
            break
    else:
        return [86400 * v for v in ticks(low / 86400, high / 86400, most)]
    return [float(n * step) for n in range(ceil(low / step), floor(high / step) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Texts for these values, all with the number of digits that writes every one exactly."""
    if not values:
        return []
    exact = [Decimal(f"{v:.12g}").normalize() for v in values]
    if len(exact) > 1 and all(v.as_tuple().digits == (1,) for v in exact):
        return [f"{v:g}" for v in values]  # powers of ten need no padding
    big = max(abs(v) for v in exact)
    if big and (big >= 10 ** 6 or big < Decimal("1e-3")):
        digits = max(len(v.as_tuple().digits) for v in exact) - 1
        return [f"{v:.{digits}e}" if v else "0" for v in map(float, exact)]
    digits = max(0, *(-int(v.as_tuple().exponent) for v in exact))
    return [f"{v:,.{digits}f}" for v in exact]
