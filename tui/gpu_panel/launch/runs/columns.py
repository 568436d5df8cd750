"""The columns of the list of runs: what each shows, how wide it is, how it sorts. Pure.

Those of `COLUMNS`, and any that `report.columns` knows: keys of the spec, and recorded values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_engine.report import columns as by_name
from gpu_engine.spec import modes
from gpu_panel.charts.sparkline import sparkline
from gpu_panel.common import units
from gpu_panel.common.rows import Part, cells, fit
from gpu_panel.run.doing import glyph, tone

if TYPE_CHECKING:
    from gpu_engine.runs.state import StateName
    from gpu_panel.launch.runs.line import RunLine

_STATES: tuple[StateName, ...] = ("running", "starting", "stopping", "queued", "failed", "lost",
                                  "unreadable", "stopped", "completed")
"""In this order runs are sorted by their state: first what needs somebody."""
_WAITS = "…"
"""Stands for a figure that is still being read."""

_HEAD = 16
"""Cells of the head of a column that stands for a key or a recorded value."""

Value = float | str | by_name.Order


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    head: str
    help: str
    cell: Callable[[RunLine, int], str]
    order: Callable[[RunLine], Value | None] | None = None
    falls: bool = False
    """Whether the greatest comes first, unless the order is turned round."""
    width: int = 0
    """In cells; 0: as wide as its longest text, up to `most`."""
    most: int = 0
    right: bool = False
    tone: str = ""

    def part(self, line: RunLine, width: int) -> Part:
        """A run's cell of exactly `width` cells."""
        text = self.cell(line, width)
        style = self.tone
        if self.name == "state":
            style = "warn" if line.state == "completed" and line.warnings else tone(line.state)
        if self.right and (gap := width - cells(text)) > 0:
            return " " * gap + text, style
        return fit(text, width), style


def mode_text(line: RunLine) -> str:
    """ "DDP×4"; "" if its plan can't be read."""
    mode = modes.find(line.mode)
    name = mode.short if mode else clean(line.mode, 12)
    return name + (f"×{line.world}" if line.world > 1 else "")


def _steps(line: RunLine, width: int) -> str:
    """How far a run has got: "1,240 of 5,862" or "21 %"; where its end is not known, as that of a
    person's own command: "1,240" or "1.2k"."""
    if line.step is None:
        return "" if line.read else _WAITS
    if width < 10:
        if line.total:
            return units.share(line.step / line.total)
        text = units.count(line.step)
        return text if len(text) <= width else units.short(line.step)
    total = f"{line.total:,}" if line.total else ""
    text = f"{line.step:,}" + (f" of {total}" if total else "")
    return text if len(text) <= width else f"{line.step:,}/{total}"


def _loss(line: RunLine, width: int) -> str:
    if line.loss is None:
        return "" if line.read else _WAITS
    return units.loss(line.loss)


def _speed(line: RunLine, width: int) -> str:
    known = line.samples_per_s is not None or line.steps_per_s is not None
    return units.pace_cell(line.samples_per_s, line.steps_per_s) if known else ""


def _begun(line: RunLine, width: int) -> str:
    return units.ago(time.time() - line.created) if line.created else ""


def _finite(value: float | None) -> float | None:
    """None for a value that can't be put in an order."""
    return value if value is not None and value - value == 0 else None


COLUMNS: dict[str, Column] = {c.name: c for c in (
    Column("state", "state", "queued, running, completed, …",
           lambda r, w: f"{glyph(r.state)} {r.state}" if w > 2 else glyph(r.state),
           lambda r: _STATES.index(r.state) if r.state in _STATES else len(_STATES), width=12),
    Column("run", "run", "the run's id", lambda r, w: clean(r.id), lambda r: r.id, most=24,
           tone="strong"),
    Column("name", "name", "the name that you gave it, or its preset's", lambda r, w: clean(r.name),
           lambda r: r.name.lower(), most=22),
    Column("preset", "preset", "the name that it was started with", lambda r, w: clean(r.preset),
           lambda r: r.preset.lower(), most=22),
    Column("task", "task", "the task's class, or the command",
           lambda r, w: clean(r.task.rpartition(":")[2] if " " not in r.task else r.task),
           lambda r: r.task.lower(), most=30),
    Column("mode", "mode", "single, DP, DDP, and over how many devices",
           lambda r, w: mode_text(r), mode_text, most=14, tone="dim"),
    Column("tags", "tags", "the tags that you gave it", lambda r, w: clean(" ".join(r.tags)),
           lambda r: " ".join(r.tags) or None, most=20, tone="accent"),
    Column("step", "step", "how far it has got", _steps, lambda r: r.step, falls=True, width=20,
           right=True),
    Column("loss", "loss", "the mean of the ranks' last losses", _loss,
           lambda r: _finite(r.loss), width=8, right=True),
    Column("curve", "curve", "the shape of its loss", lambda r, w: sparkline(r.history, w),
           width=10, tone="accent"),
    Column("speed", "examples/s", "examples or steps per second, at the end of a finished run",
           _speed, lambda r: _finite(r.samples_per_s), falls=True, width=12, right=True),
    Column("time", "took", "how long its attempts took, without the time between them",
           lambda r, w: units.clock(r.seconds) if r.seconds is not None else "",
           lambda r: r.seconds, falls=True, width=10, right=True),
    Column("begun", "begun", "when it was started", _begun, lambda r: r.created, falls=True,
           width=12),
    Column("note", "note", "the first line of what you wrote on it",
           lambda r, w: clean(r.note.partition("\n")[0]), most=40, tone="dim"),
)}


@cache
def find(name: str) -> Column | None:
    """The column of this name; None: there can be none."""
    if name in COLUMNS or not by_name.known(name):
        return COLUMNS.get(name)

    def cell(line: RunLine, width: int) -> str:
        text = by_name.text(name, line.settings, line.values)
        return text if text or line.read or not recorded else _WAITS

    recorded = by_name.is_recorded(name)
    return Column(name, fit(by_name.head(name), _HEAD).rstrip(), name, cell,
                  lambda r: by_name.order(name, r.settings, r.values),
                  falls=by_name.greatest_first(name), most=by_name.WIDEST, right=recorded)


def these(names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of these names, without those that can't be."""
    return tuple(found for name in names if (found := find(name)) is not None)


DEFAULT = ("state", "run", "name", "mode", "tags", "step", "loss", "curve", "speed", "time")

_OTHERS = "*"
"""Stands for every column that is none of `COLUMNS`, the last one first."""
_SHRINK = (("curve", 8), ("note", 24), ("task", 20), ("step", 14), ("tags", 14), ("begun", 0),
           ("speed", 0), ("curve", 6), ("note", 12), ("task", 12), ("step", 5), ("time", 8),
           ("curve", 0), ("name", 14), ("preset", 10), ("tags", 8), ("note", 0), ("task", 0),
           ("time", 0), (_OTHERS, 8), ("name", 10), ("preset", 0), ("tags", 0), ("state", 2),
           ("mode", 0), (_OTHERS, 0), ("step", 0), ("name", 8), ("loss", 0))
"""How the columns get narrower or go, the least important first, until all fit."""
GAP = MARK_WIDTH = 2
_END = 14
"""The cells that are kept for how a run ended."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown and their widths in cells."""

    columns: tuple[tuple[Column, int], ...]
    marks: bool
    room: int
    """The cells that are left for how a run ended."""

    def at(self, x: int) -> Column | None:
        """The column at this cell of a line."""
        left = MARK_WIDTH if self.marks else 0
        for column, width in self.columns:
            if left <= x < left + width:
                return column
            left += width + GAP
        return None


def layout(lines: Sequence[RunLine], width: int, chosen: Sequence[str] = DEFAULT, *,
           marks: bool = False) -> Layout:
    """The columns `chosen` as they fit into `width` cells. One that would be empty is left out."""
    known = {column.name: column for column in these(chosen)}
    sizes: dict[str, int] = {}
    for name, column in known.items():
        size = column.width or min(column.most, _longest(column, lines))
        if size:
            sizes[name] = max(size, len(column.head) + 1)
    room = width - _END - (MARK_WIDTH if marks else 0)
    others = [name for name in reversed(known) if name not in COLUMNS]
    for name, size in ((name, size) for shrunk, size in _SHRINK
                       for name in (others if shrunk == _OTHERS else (shrunk,))):
        if sum(size + GAP for size in sizes.values()) <= room:
            break
        if name in sizes:
            sizes[name] = min(sizes[name], size)
            if not size:
                del sizes[name]
    found = tuple((known[name], size) for name, size in sizes.items())
    return Layout(found, marks, room + _END - sum(size + GAP for size in sizes.values()))


def _longest(column: Column, lines: Collection[RunLine]) -> int:
    if column.name == "run":
        return max((len(line.id) for line in lines), default=0)
    # Most of a thousand runs have the same few names.
    lines = lines if column.name not in COLUMNS else {
        (line.name, line.preset, line.task, line.tags, line.note, line.mode, line.world): line
        for line in lines}.values()
    return max((cells(column.cell(line, 99)) for line in lines), default=0)


def in_order(lines: Sequence[RunLine], by: str | None, turned: bool) -> list[RunLine]:
    """The runs sorted by a column, those without a value last; by None as they are: live ones
    first, then the newest. `turned`: the other way round."""
    column = find(by) if by is not None else None
    if column is None or (order := column.order) is None:
        return list(reversed(lines)) if turned else list(lines)
    known = [(value, line) for line in lines if (value := order(line)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=column.falls is not turned)  # type: ignore[arg-type, return-value]
    there = {line.id for _, line in known}
    return [*(line for _, line in known), *(line for line in lines if line.id not in there)]
