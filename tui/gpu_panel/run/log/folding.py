"""Long lines on several rows of the screen. Pure."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len, chop_cells

MOST_ROWS = 200
"""Rows of one line, at most: more than a screen has."""

Piece = tuple[int, int]
"""(entry, character at which a row of it begins)."""


def pieces(text: str, width: int) -> list[int]:
    """The character at which each row of a line begins, in rows of at most `width` cells."""
    width = max(width, 1)
    if text.isascii():
        return list(range(0, max(len(text), 1), width))[:MOST_ROWS]
    if cell_len(text) <= width:
        return [0]
    begins, at = [], 0
    for part in chop_cells(text[:width * MOST_ROWS], width)[:MOST_ROWS]:
        begins.append(at)
        at += len(part)
    return begins or [0]


def page_from(top: int, count: int, height: int, begins: Callable[[int], list[int]],
              ) -> list[Piece]:
    """The rows of a page whose first entry is `top`. `count`: how many entries there are;
    `begins`: where the rows of an entry begin."""
    rows: list[Piece] = []
    entry = top
    while entry < count and len(rows) < height:
        rows += [(entry, at) for at in begins(entry)]
        entry += 1
    return rows[:height]


def page_to(count: int, height: int, begins: Callable[[int], list[int]]) -> list[Piece]:
    """The rows of the last page; of its first entry perhaps only the last rows."""
    rows: list[Piece] = []
    entry = count - 1
    while entry >= 0 and len(rows) < height:
        rows = [(entry, at) for at in begins(entry)] + rows
        entry -= 1
    return rows[-height:] if height else []
