"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[str] | str], *, right: bool = False) -> list[str]:
    """Rows as lines with two blanks between their columns, each as wide as its widest cell. A row
    that is a single text stands on a line of its own and has no columns. `right`: all columns but
    the first are aligned to the right."""
    rows = list(rows)
    cells = [row for row in rows if not isinstance(row, str)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines: list[str] = []
    for row in rows:
        if isinstance(row, str):
            lines.append(row)
            continue
        first, *others = (cell.rjust(width) if right and at else cell.ljust(width)
                          for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        lines.append("  ".join([first, *others]).rstrip())
    return lines
