"""The columns of `gpu_engine.common.table` as lines of styled text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_engine.common.table import GAP, Column
from gpu_panel.common.rows import Line, Part, cells, fit


def line(columns: Iterable[Column[Any]], sizes: Mapping[str, int], row: object, *,
         behind: int = 0) -> Line:
    """A row, in those columns that have a size. `behind`: blanks at its end."""
    parts: list[Part] = []
    shown = [column for column in columns if column.name in sizes]
    for column in shown:
        size, gap = sizes[column.name], " " * (behind if column is shown[-1] else GAP)
        told = column.within(row, size) if column.within else column.of(row)
        if isinstance(told, str):
            told = " " * ((size - cells(told)) * column.right) + told
            parts.append((fit(told, size) + gap, column.style(row)))
        else:
            parts += [*told, (" " * (size - sum(cells(text) for text, _ in told)) + gap, "")]
    return tuple(parts)


def head(columns: Iterable[Column[Any]], sizes: Mapping[str, int], by: str | None = None,
         turned: bool = False) -> str:
    """The heads of these columns; the one that rows are sorted by has an arrow."""
    arrow = {False: "▲", True: "▼"}
    told = [(c.title + arrow[c.falls is not turned] * (c.name == by), sizes[c.name], c.right)
            for c in columns if c.name in sizes]
    return (" " * GAP).join(f"{text:{'<>'[right]}{size}}"[:size] for text, size, right in told)
