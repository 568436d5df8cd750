"""Small curves in one line of text: each cell is a bar with eight possible heights."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "×"


def bar(share: float) -> str:
    """One cell for a share from 0 to 1; other values are clipped."""
    return _BARS[min(max(int(share * len(_BARS)), 0), len(_BARS) - 1)]


def sparkline(values: Iterable[float], width: int) -> str:
    """The values in `width` cells, scaled from their least to their greatest. A value that is not
    finite is marked, as in a chart; a flat line stays flat instead of being scaled up to noise."""
    points = list(values)
    if not points or width <= 0:
        return " " * width
    cells: list[float | None] = []
    for i in range(width):
        part = points[i * len(points) // width:max((i + 1) * len(points) // width,
                                                   i * len(points) // width + 1)]
        cells.append(sum(part) / len(part) if all(map(isfinite, part)) else None)
    known = [c for c in cells if c is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    if not isfinite(span) or span <= 1e-9 * max(abs(low), abs(high), 1e-12):
        return "".join(_NOT_FINITE if c is None else "▄" for c in cells)
    return "".join(_NOT_FINITE if c is None else bar((c - low) / span) for c in cells)
