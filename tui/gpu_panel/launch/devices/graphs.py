"""A device's last five minutes as parts of lines of text. Pure.

Brightness tells how busy a device was, hue whose run it was: see `styles`. Heights and shades tell
the same without colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gpu_panel.charts.braille import Canvas
from gpu_panel.charts.sparkline import bar
from gpu_panel.common import load
from gpu_panel.common.rows import Line, Part
from gpu_panel.launch.devices.history import Span

Values = Sequence[float | None]


def style(share: float | None, hue: int) -> str:
    """The style for a share of load: "idle3", "moderate3" or "heavy3", where 3 is the hue."""
    return f"{load.level(share)}{hue}"


def bars(values: Values, hue: int) -> Line:
    """A bar of eight possible heights for each value; a gap where nothing is known."""
    return tall_bars(values, 1, hue)[0]


def tall_bars(values: Values, rows: int, hue: int) -> list[Line]:
    """`bars` on so many lines."""
    return [_merged((_part_of(v, rows, row), style(v, hue)) for v in values)
            for row in reversed(range(rows))]


def _part_of(share: float | None, rows: int, row: int) -> str:
    """The cell of a bar on a line, counted from below."""
    if share is None:
        return " "
    eighths = max(1, round(share * rows * 8)) - row * 8
    return " " if eighths <= 0 else bar((min(eighths, 8) - 0.5) / 8)


_SHADES = "░▒▓█"


def heat(values: Values, hue: int) -> Line:
    """A shade for each value, for many devices below each other."""
    return _merged((" " if v is None else _SHADES[load.shade(v)], style(v, hue)) for v in values)


def area(values: Values, rows: int, hue: int) -> list[Line]:
    """A filled curve, two values in a cell, on so many lines. What is idle keeps its lowest dot,
    and differs so from what is unknown."""
    canvas = Canvas(len(values) // 2, rows)
    canvas.paint([0 if v is None else (1 << max(1, round(v * rows * 4))) - 1 for v in values], 0)
    styles = [style(max((v for v in values[2 * x:2 * x + 2] if v is not None), default=None), hue)
              for x in range(canvas.width)]
    return [_merged(zip(line, styles, strict=True)) for line in canvas.chars]


def axis(over: Span) -> str:
    """The minutes at a graph, as many as there is room for: "-5 min   -4   -3   -2   -1  now"."""
    for first, others in (("-5 min", (4, 3, 2, 1)), ("-5 min", (3, 1)), ("-5 min", ()), ("-5", ()),
                          ("", ())):
        line = first
        for minutes in others:
            at = over.cells - round(minutes * 60 / over.seconds)
            if at < len(line) + 2:
                break
            line = line.ljust(at) + f"-{minutes}"
        else:
            if len(line) + 2 + len("now") <= over.cells or not first:
                return line + "now".rjust(over.cells - len(line))[:over.cells]
    return ""


def _merged(cells: Iterable[Part]) -> Line:
    """Cells of one style that stand beside each other as one part."""
    return tuple(("".join(text for text, _ in same), style)
                 for style, same in groupby(cells, key=lambda cell: cell[1]))
