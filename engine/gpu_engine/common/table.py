"""A table is a list of columns: what each says of a row, how wide it is, and when it gives way. The
panel draws it, the command line prints its texts. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from gpu_engine.common.units import UNKNOWN

R = TypeVar("R")
"""What a row is about."""
GAP = 2
"""Cells between two columns."""


def _plain(row: object) -> str:
    return ""


@dataclass(frozen=True)
class Column(Generic[R]):
    """What a table says of each of its rows in one respect."""

    name: str
    title: str
    """Its head."""
    of: Callable[[R], str]
    """What it says of a row; "" or a dash: nothing is known."""
    style: Callable[[R], str] = _plain
    """"" for what is no news; else "dim", "strong", "good", "warn", "bad", "accent"."""
    _: KW_ONLY
    within: Callable[[R, int], str | tuple[tuple[str, str], ...]] | None = None
    """What is drawn in so many cells, such as a bar or a sparkline, as a text or as texts with
    their styles; None: as `of`."""
    width: int = 0
    """The cells that it has at least."""
    most: int = 99
    """Its widest text has so many cells at most; 0: `width` is all that it has."""
    right: bool = False
    stays: bool = False
    """Whether it is there even where nothing is known of any row."""
    gives: tuple[tuple[int, int], ...] = ()
    """When it gives way, and to how many cells, 0 for none: the lowest number of all columns goes
    first."""
    order: Callable[[R], Any] | None = None
    """What rows are sorted by; None: they have nothing to be sorted by."""
    falls: bool = False
    """Whether the greatest comes first, unless the order is turned round."""


def fit(columns: Sequence[Column[R]], rows: Collection[R], width: int,
        cells: Callable[[str], int] = len) -> dict[str, int]:
    """Name → the cells of each column in a table of so many, with a gap behind each. Those that
    know nothing are left out, and the least important ones. `cells`: of a text."""
    sizes: dict[str, int] = {}
    for column in columns:
        told = {column.of(row) for row in rows} if column.most else set()
        if not column.most or column.stays or told - {"", UNKNOWN}:
            sizes[column.name] = max(column.width, cells(column.title),
                                     min(column.most, max(map(cells, told), default=0)))
    for _, _, name, size in sorted((turn, -at, column.name, size)
                                   for at, column in enumerate(columns) if column.name in sizes
                                   for turn, size in column.gives):
        if sum(sizes.values()) + GAP * len(sizes) <= width:
            break
        if size and name in sizes:
            sizes[name] = min(sizes[name], size)
        else:
            sizes.pop(name, None)
    return sizes


def in_order(rows: Iterable[R], column: Column[R], *, turned: bool = False) -> list[R]:
    """The rows sorted by a column, those without a value last. `turned`: the other way round."""
    assert column.order is not None
    values = [(column.order(row), row) for row in rows]
    known = [each for each in values if each[0] is not None]
    known.sort(key=lambda each: each[0], reverse=column.falls is not turned)
    return [row for _, row in [*known, *(each for each in values if each[0] is None)]]


def finite(value: float | None) -> float | None:
    """None for a value that can't be put in an order."""
    return value if value is not None and value - value == 0 else None


def texts(columns: Iterable[Column[R]], rows: Collection[R]) -> list[tuple[str, ...]]:
    """The heads and what is said of each row, without columns that say nothing."""
    told = [(column.title, *map(column.of, rows)) for column in columns]
    return [*zip(*(each for each in told if any(each[1:])), strict=True)]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table for a report or an issue, line by line."""
    first, *rest = ("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
                   for row in (head, *rows))
    return [first, "|" + "---|" * len(head), *rest]
