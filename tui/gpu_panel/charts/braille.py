"""Turns columns of braille dots into characters.

A column is an int whose bit 0 is the lowest dot. A character cell is two columns wide and four dots
high. Painting is opaque: a cell of a later curve replaces that of an earlier one, so that no dot
takes another curve's colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, log10

Point = tuple[int, int, int]
"""(lowest, middle, highest) dot of a column."""

_LEFT = tuple(sum(bit for i, bit in enumerate((0x40, 0x04, 0x02, 0x01)) if n >> i & 1)
              for n in range(16))
_RIGHT = tuple(sum(bit for i, bit in enumerate((0x80, 0x20, 0x10, 0x08)) if n >> i & 1)
               for n in range(16))

DASHES: tuple[tuple[bool, ...], ...] = (
    (True,),
    (True,) * 6 + (False,) * 3,
    (True, True, False, False),
    (True,) * 8 + (False,) * 2 + (True,) * 2 + (False,) * 2,
    (True, False, False),
)
"""Which columns a stroke paints, repeated: solid, dashed, dotted, dash-dot, sparse."""


class Canvas:
    """`width` × `height` cells, each with a character and the number of a style."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.chars = [[" "] * width for _ in range(height)]
        self.styles = [[0] * width for _ in range(height)]

    def paint(self, columns: Sequence[int], style: int) -> None:
        """Paint 2 × width columns of dots over what is there."""
        top = self.height - 1
        for cell in range(self.width):
            left, right = columns[2 * cell], columns[2 * cell + 1]
            both = left | right
            if not both:
                continue
            row = ((both & -both).bit_length() - 1) >> 2
            left >>= 4 * row
            right >>= 4 * row
            while left or right:
                code = _LEFT[left & 15] | _RIGHT[right & 15]
                if code and row <= top:
                    self.chars[top - row][cell] = chr(0x2800 + code)
                    self.styles[top - row][cell] = style
                left >>= 4
                right >>= 4
                row += 1

    def text(self, x: int, y: int, text: str, style: int) -> None:
        """Write `text` over what is there, cut at the edges; each character is one cell wide."""
        if 0 <= y < self.height:
            for at, char in enumerate(text, x):
                if 0 <= at < self.width:
                    self.chars[y][at] = char
                    self.styles[y][at] = style


def stroke(points: Sequence[Point | None], dash: int = 0, broken: frozenset[int] = frozenset(),
           ) -> list[int]:
    """The dots of a line: each column with a point is filled from its lowest to its highest dot
    and joined to the one before. Nothing is joined across a column in `broken`."""
    pattern = DASHES[dash % len(DASHES)]
    period = len(pattern)
    out = [0] * len(points)
    before: tuple[int, Point] | None = None
    for x, point in enumerate(points):
        if x in broken:
            before = None
        if point is None:
            continue
        low, middle, high = point
        if before is not None:
            x0, (low0, middle0, high0) = before
            if x - x0 == 1:  # touch the neighbour's bar
                if low > high0 + 1:
                    low = high0 + 1
                elif high < low0 - 1:
                    high = low0 - 1
            else:
                slope = (middle - middle0) / (x - x0)
                last = middle0
                for between in range(x0 + 1, x):
                    y = round(middle0 + slope * (between - x0))
                    if pattern[between % period]:
                        out[between] |= _bar(min(y, last + 1), max(y, last - 1)) \
                            if abs(y - last) > 1 else 1 << y
                    last = y
                if low > last + 1:
                    low = last + 1
                elif high < last - 1:
                    high = last - 1
        before = x, point
        if pattern[x % period]:
            out[x] |= _bar(low, high)
    return out


def thick(columns: Sequence[int], dots: int) -> list[int]:
    """A line that is one dot thicker, within a height of `dots`."""
    whole = (1 << dots) - 1
    return [(column | column << 1) & whole | column for column in columns]


def band(points: Sequence[Point | None], broken: frozenset[int] = frozenset()) -> list[int]:
    """The area between the lowest and the highest dots, filled, also across columns without a
    point; not towards a column in `broken`."""
    out = [0] * len(points)
    before: tuple[int, Point] | None = None
    for x, point in enumerate(points):
        if point is None:
            continue
        low, _, high = point
        out[x] = _bar(low, high)
        if before is not None and x not in broken:
            x0, (low0, _, high0) = before
            for between in range(x0 + 1, x):
                share = (between - x0) / (x - x0)
                out[between] = _bar(round(low0 + share * (low - low0)),
                                    round(high0 + share * (high - high0)))
        before = x, point
    return out


def _bar(low: int, high: int) -> int:
    return ((1 << (high - low + 1)) - 1) << low if high >= low else 0


# --- a share, or a curve, in a few characters ---------------------------------------------------

_BARS = "▁▂▃▄▅▆▇"
"""Never a whole cell: bars in rows below each other don't merge."""
_NOT_FINITE = "×"


def bar(share: float) -> str:
    """One cell for a share from 0 to 1; other values are clipped."""
    return _BARS[min(max(int(share * len(_BARS)), 0), len(_BARS) - 1)]


def level(share: float, width: int) -> tuple[str, str]:
    """A bar and what is left of its track, `width` cells together. `share`: 0 to 1. They differ
    without colours too."""
    filled = round(share * width)
    return _BARS[-1] * filled, _BARS[0] * (width - filled)


def area(shares: Sequence[float | None], rows: int = 1) -> list[str]:
    """Shares from 0 to 1, two a cell, filled from below in so many rows of text: but for the
    highest of all dots, so that the areas of two devices never merge. A gap where nothing is
    known."""
    canvas, most = Canvas((len(shares) + 1) // 2, rows), 4 * rows - 2
    canvas.paint([0] * (len(shares) % 2) + [
        0 if s is None else (2 << min(most, int(s * (most + 1)))) - 1 for s in shares], 0)
    return ["".join(chars) for chars in canvas.chars]


def sparkline(values: Iterable[float], width: int) -> str:
    """The values in `width` cells, scaled from their least to their greatest, by their logarithms
    if they span more than a decade. A value that is not finite is marked, as in a chart; a flat
    line stays flat instead of being scaled up to noise."""
    points = list(values)
    if not points or width <= 0:
        return " " * width
    cells: list[float | None] = []
    for i in range(width):
        part = points[i * len(points) // width:max((i + 1) * len(points) // width,
                                                   i * len(points) // width + 1)]
        cells.append(sum(part) / len(part) if all(map(isfinite, part)) else None)
    known = [c for c in cells if c is not None]
    if known and 0 < 10 * min(known) < max(known):  # as a chart does
        cells = [None if c is None else log10(c) for c in cells]
        known = [c for c in cells if c is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    if not isfinite(span) or span <= 1e-9 * max(abs(low), abs(high), 1e-12):
        return "".join(_NOT_FINITE if c is None else "▄" for c in cells)
    return "".join(_NOT_FINITE if c is None else bar((c - low) / span) for c in cells)
