"""The fewest bytes that make a terminal show another picture. Pure.

Cells of one style are sent together, from wherever they are on the screen: in a chart of many
curves a colour takes three times the bytes of a move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_panel.terminal import style
from gpu_panel.terminal.cells import Cell, Picture

BRIDGE = 4
"""Up to so many unchanged cells between two changed ones are sent again: a move costs as much."""


class Run(NamedTuple):
    """Neighbouring cells of one style."""

    row: int
    column: int
    style: str
    text: str
    width: int


def runs(row: int, shown: Sequence[Cell | None], wanted: Sequence[Cell | None]) -> list[Run]:
    """What must be written so that a row shows `wanted`. Cells that are None are left alone."""
    found: list[Run] = []
    at, width = 0, len(wanted)
    while at < width:
        cell = wanted[at]
        if cell is None or cell == shown[at]:
            at += 1
            continue
        if cell[0] == "" and at > 0:  # only the right half of a wide character changed
            at -= 1
            cell = wanted[at]
            if cell is None or cell[0] == "":
                at += 2
                continue
        begin = end = at
        ink = cell[1]
        while at < width and at - end <= BRIDGE:
            here = wanted[at]
            if here is None or here[1] != ink:
                break
            at += 1
            if here != shown[at - 1]:
                end = at
        while end < width and wanted[end] == ("", ink):  # a wide character is sent whole
            end += 1
        text = "".join(c[0] for c in wanted[begin:end] if c is not None)
        found.append(Run(row, begin, ink, text, end - begin))
        at = end
    return found


class Pen:
    """Where the terminal writes next, and in which style; None: not known."""

    __slots__ = ("_out", "column", "row", "style")

    def __init__(self) -> None:
        self.row: int | None = None
        self.column: int | None = None
        self.style: str | None = None
        self._out: list[str] = []

    def write(self, run: Run, width: int) -> None:
        self.move(run.row, run.column)
        self._out.append(style.change(self.style, run.style))
        self._out.append(run.text)
        self.style = run.style
        at = run.column + run.width
        # Behind the last column, and behind what terminals do not agree on how wide it is, no one
        # knows where the cursor is.
        self.column = at if at < width and len(run.text) == run.width else None

    def move(self, row: int, column: int) -> None:
        if row == self.row and column == self.column:
            return
        if row == self.row and self.column is not None and column > self.column:
            step = column - self.column
            self._out.append(f"\x1b[{step}C" if step > 1 else "\x1b[C")
        else:
            self._out.append(f"\x1b[{row + 1};{column + 1}H" if column else f"\x1b[{row + 1}H")
        self.row, self.column = row, column

    def taken(self) -> str:
        """What was written since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text


def between(shown: list[list[Cell | None]], wanted: Picture, rows: Iterable[int], pen: Pen,
            limit: int | None = None) -> tuple[str, list[int]]:
    """(what to write, the rows that it completes). Changes `shown` to what the terminal then shows.

    `rows`: those that may differ, in their order of importance. With a `limit` in bytes only the
    first rows are written, at least one, and the others are left for the next time.
    """
    found: list[Run] = []
    done: list[int] = []
    size = 0
    for row in rows:
        if limit is not None and size > limit:
            break
        new = runs(row, shown[row], wanted.rows[row])
        for run in new:
            shown[row][run.column:run.column + run.width] = \
                wanted.rows[row][run.column:run.column + run.width]
            size += len(run.text.encode()) + 12
        found += new
        done.append(row)
    found.sort(key=lambda r: (r.style, r.row, r.column))
    for run in found:
        pen.write(run, wanted.width)
    return pen.taken(), done
