"""Marks on a chart: moments that a person may want to find on the curve. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_panel.charts.braille import Canvas

BEGINS, EVALUATION, CHECKPOINT = "┊", "◆", "▪"
"""What a mark looks like: an attempt or a training begins (a line), an evaluation, a checkpoint."""

_APART = 6
"""Cells from one mark to the next, if there are many."""


@dataclass(frozen=True, slots=True)
class Mark:
    x: int
    kind: str
    text: str = ""
    """What is said about it at the crosshair."""


def paint_begins(plot: Canvas, marks: Iterable[Mark], x0: float, x1: float, style: int) -> None:
    """Draw the lines between x0 and x1 where attempts and trainings begin, behind the curves."""
    for mark in marks:
        if mark.kind == BEGINS and x0 <= mark.x <= x1:
            cell = cell_of(plot.width, mark.x, x0, x1)
            for row in range(plot.height):
                if plot.chars[row][cell] == " ":
                    plot.text(cell, row, BEGINS, style)


def paint(canvas: Canvas, left: int, marks: Iterable[Mark], x0: float, x1: float, style: int
          ) -> None:
    """Draw the other marks on the x axis, which is the lowest row from the cell `left` on: there
    they aren't taken for values. If they would fill it, some are left out."""
    width = canvas.width - left
    shown = [m for m in marks if m.kind != BEGINS and x0 <= m.x <= x1]
    apart = 1 if len(shown) * 4 <= width else _APART
    taken: set[int] = set()
    for mark in sorted(shown, key=lambda m: (m.kind != EVALUATION, m.x)):
        cell = cell_of(width, mark.x, x0, x1)
        if taken.isdisjoint(range(cell - apart + 1, cell + apart)):
            taken.add(cell)
            canvas.text(left + cell, canvas.height - 1, mark.kind, style)


def cell_of(width: int, x: float, x0: float, x1: float) -> int:
    """The cell of an axis of `width` cells, from x0 to x1, that x is in."""
    return round((x - x0) / max(x1 - x0, 1e-9) * (2 * width - 1)) // 2
