"""The table of a sweep as rows of text, and what has been read for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.runs.digest import By, FiguresOf
from gpu_engine.sweep import table as sweep_table
from gpu_engine.sweep.group import Group, default_by, find, read
from gpu_engine.sweep.table import FAILED, RUNNING, STOPPED, One, Point, failures
from gpu_panel import readonly
from gpu_panel.common.rows import Line, Part, Row, cells, fit, wrap
from gpu_panel.run.states import glyph, tone

POINT = "point "
"""Begins the key of a row that is a point with several members; other keys are runs' ids."""
_GAP = 2
_NARROW = 10
"""Cells of a value, where there is little room."""
_GO = (-1, -2, -3, -4)
"""The columns that go first where there is too little room: examples a second, time, steps, the
last value."""


def build(points: Sequence[Point], keys: Sequence[str], by: By, width: int, *,
          unfolded: Collection[str] = ()) -> tuple[Line, list[Row]]:
    """(header, rows) of the table for `width` cells. `unfolded`: keys of the points whose members
    are shown."""
    table = [sweep_table.heads(keys, by)]
    kinds: list[tuple[Point, One | None]] = []
    for point in points:
        several = len(point.members) > 1
        table.append(sweep_table.cells(point) if several else _single(point, by))
        kinds.append((point, None if several else point.members[0]))
        if several and key_of(point) in unfolded:
            for one in point.members:
                table.append(_member(one, len(keys), by))
                kinds.append((point, one))
    # Only where something can be unfolded is room taken for the signs.
    folds = any(len(point.members) > 1 for point in points)
    front = 2 if folds else 0
    sizes = _sizes(table, len(keys), width - front)
    head: Line = ((" " * front + _joined(table[0], sizes, len(keys)), "dim"),)
    # One that lacks members could lead by luck: its mean is of fewer.
    best = next((p for p in points if p.best.mean is not None and not p.partial), None)
    rows = []
    for (point, one), texts in zip(kinds, table[1:], strict=True):
        parts: list[Part] = []
        inner = one is not None and len(point.members) > 1
        if folds:
            sign = "  " if one is not None else "▾ " if key_of(point) in unfolded else "▸ "
            parts.append((sign, "dim"))
        text = _joined(texts, sizes, len(keys))
        style = tone(one.state) if inner and one is not None else "good" if point is best else ""
        bad = one is not None and one.kind == FAILED
        parts.append((text, "bad" if bad else "dim" if inner and style == "good" else style))
        if one is not None and one.why:
            parts.append((f"  {one.why}", "bad" if bad else "dim"))
        rows.append(Row(one.id if one is not None else key_of(point), (tuple(parts),)))
    return head, rows


def below(points: Sequence[Point], by: By, width: int) -> list[Row]:
    """What is said below the table: what the figures are, and why runs have failed."""
    rows = [_text("")]
    several = [m for p in points for m in p.members if len(p.members) > 1]
    for kind, style in ((FAILED, "bad"), (STOPPED, "dim")):
        for why, whose in failures(several, kind):
            first = ", ".join(one.id for one in whose[:4]) + (", …" if len(whose) > 4 else "")
            rows += [_text(line, style) for line in wrap(f"{len(whose)} {kind} ({first}): {why}",
                                                         width)]
    for note in sweep_table.notes(points, by):
        rows += [_text(line, "dim") for line in wrap(note, width)]
    return rows if len(rows) > 1 else []


def key_of(point: Point) -> str:
    return POINT + str(point.members[0].index)


def markdown(points: Sequence[Point], keys: Sequence[str], by: By) -> list[str]:
    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(t.replace("|", "\\|") for t in texts) + " |"

    head = sweep_table.heads(keys, by)
    return [line(head), "|" + "---|" * len(head), *(line(sweep_table.cells(p)) for p in points)]


def _single(point: Point, by: By) -> list[str]:
    one = point.members[0]
    texts = sweep_table.cells(point)
    texts[len(point.values)] = f"{one.id} {glyph(one.state)} {one.kind}"
    return texts


def _member(one: One, keys: int, by: By) -> list[str]:
    number = f"└ #{one.repeat}" if one.repeat is not None else "└"
    return [*[number, *[""] * keys][:keys], f"{one.id} {glyph(one.state)} {one.kind}",
            units.loss(one.best(by)), units.loss(one.last(by)), units.count(one.steps),
            units.clock(one.seconds), sweep_table.rate(one.samples_per_s)]


def _sizes(table: Sequence[Sequence[str]], keys: int, width: int) -> list[int]:
    sizes = [max(cells(text) for text in column) for column in zip(*table, strict=True)]
    at = 0
    while sum(size + _GAP for size in sizes if size) > width and at < len(_GO):
        sizes[_GO[at]] = 0
        at += 1
    if sum(size + _GAP for size in sizes if size) > width:
        sizes = [min(size, _NARROW) if i < keys else size for i, size in enumerate(sizes)]
    return sizes


def _joined(texts: Sequence[str], sizes: Sequence[int], keys: int) -> str:
    out = ""
    for at, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        if size:
            right = at > keys  # figures
            out += (" " * max(size - cells(text), 0) + text if right
                    else fit(clean(text), size)) + " " * _GAP
    return out.rstrip() if not out.strip() else out[:-_GAP]


def _text(text: str, style: str = "dim") -> Row:
    return Row("", (((text, style),),))


def progress(members: Sequence[One]) -> bool:
    """Whether any of them may still change by itself."""
    return any(one.kind == RUNNING or one.state == "queued" for one in members)


# --- what has been read ---------------------------------------------------------------------------

class Gathered(NamedTuple):
    group: Group
    members: list[One]
    by: By
    """The value that decides unless a person says otherwise."""


class SweepStore:
    """Reads a sweep and remembers what it has read of members that have ended."""

    def __init__(self, sweep: str) -> None:
        self.sweep = sweep
        self._figures = FiguresOf(keep=not readonly.on)
        self.last: Gathered | None = None

    def gather(self) -> Gathered:
        """The members as they are now. Blocks. Raises UserError if the sweep is gone."""
        before = self.last
        group = before.group if before is not None else find(self.sweep)
        members = read(group, self._figures.read)
        by = before.by if before is not None else default_by(group, members)
        self.last = Gathered(group, members, by)
        return self.last
