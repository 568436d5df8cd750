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


def paint(plot: Canvas, marks: Iterable[Mark], x0: float, x1: float, style: int) -> None:
    """Draw the marks between x0 and x1: lines behind the curves, characters in the highest row, as
    most losses fall. If they would fill that row, some are left out."""
    shown = [m for m in marks if x0 <= m.x <= x1]
    apart = 1 if len(shown) * 4 <= plot.width else _APART
    taken: set[int] = set()
    for mark in sorted(shown, key=lambda m: (m.kind != EVALUATION, m.x)):
        cell = cell_of(plot, mark.x, x0, x1)
        if mark.kind == BEGINS:
            for row in range(plot.height):
                if plot.chars[row][cell] == " ":
                    plot.text(cell, row, BEGINS, style)
        elif taken.isdisjoint(range(cell - apart + 1, cell + apart)):
            taken.add(cell)
            plot.text(cell, 0, mark.kind, style)


def cell_of(plot: Canvas, x: float, x0: float, x1: float) -> int:
    return round((x - x0) / max(x1 - x0, 1e-9) * (2 * plot.width - 1)) // 2
