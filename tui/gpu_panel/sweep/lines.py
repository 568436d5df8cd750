"""The table of a sweep as rows of text, and what has been read for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from gpu_engine.common import table, units
from gpu_engine.common.clean import clean
from gpu_engine.common.table import Column
from gpu_engine.runs.digest import By, figures_of
from gpu_engine.sweep import table as sweep_table
from gpu_engine.sweep.group import Group, default_by, find, read
from gpu_engine.sweep.table import FAILED, RUNNING, STOPPED, One, Point, failures
from gpu_panel import readonly
from gpu_panel.common.rows import Line, Part, Row, cells, text_row
from gpu_panel.common.table import head, line
from gpu_panel.run.states import glyph, tone

POINT = "point "
"""Begins the key of a row that is a point with several members; other keys are runs' ids."""
_NARROW = 10
"""Cells of a value, where there is little room."""


class _Shown(NamedTuple):
    """A line of the table: a point, or a run of one."""

    key: str
    texts: Sequence[str]
    style: str
    sign: str
    """Whether its runs are shown below it."""
    why: Part
    """Why it has failed or was stopped."""


def build(points: Sequence[Point], keys: Sequence[str], by: By, width: int, *,
          unfolded: Collection[str] = ()) -> tuple[Line, list[Row]]:
    """(header, rows) of the table for `width` cells. `unfolded`: keys of the points whose members
    are shown."""
    # One that lacks members could lead by luck: its mean is of fewer.
    best = next((p for p in points if p.best.mean is not None and not p.partial), None)
    shown: list[_Shown] = []
    for point in points:
        key, good = key_of(point), "good" * (point is best)
        if len(point.members) == 1:
            shown.append(_run(point.members[0], _single(point), good))
            continue
        is_open = key in unfolded
        shown.append(_Shown(key, sweep_table.cells(point), good, "▾ " if is_open else "▸ ",
                            ("", "")))
        for one in point.members if is_open else ():
            style = tone(one.state)
            shown.append(_run(one, _member(one, len(keys), by),
                              "dim" if style == "good" else style))
    columns = _columns(sweep_table.heads(keys, by), len(keys))
    # Only where something can be unfolded is room taken for the signs.
    front = 2 * any(len(point.members) > 1 for point in points)
    sizes = table.fit(columns, shown, width - front, cells)
    return ((" " * front + head(columns, sizes), "dim"),), [
        Row(one.key, (((one.sign[:front], "dim"), (
            "".join(text for text, _ in line(columns, sizes, one)), one.style), one.why),))
        for one in shown]


def _columns(heads: Sequence[str], keys: int) -> list[Column[_Shown]]:
    """Examples a second go first where there is too little room, then time, steps, the last value;
    values and who has them stay."""
    gives = [*[((9, _NARROW),)] * keys, (), (), *[((turn, 0),) for turn in (4, 3, 2, 1)]]
    return [Column(str(at), title, lambda row, at=at: clean(row.texts[at]), stays=True,
                   right=at > keys, gives=gives[at]) for at, title in enumerate(heads)]


def _run(one: One, texts: Sequence[str], style: str) -> _Shown:
    bad = "bad" * (one.kind == FAILED)
    return _Shown(one.id, texts, bad or style, "  ",
                  (f"  {one.why}" if one.why else "", bad or "dim"))


def below(points: Sequence[Point], by: By, of: int, width: int) -> list[Row]:
    """What is said below the table: what the figures are, and why runs have failed. `of`: how many
    runs were to be submitted."""
    rows = [text_row("")]
    several = [m for p in points for m in p.members if len(p.members) > 1]
    for kind, style in ((FAILED, "bad"), (STOPPED, "dim")):
        for why, whose in failures(several, kind):
            first = ", ".join(one.id for one in whose[:4]) + (", …" if len(whose) > 4 else "")
            rows.append(text_row(f"{len(whose)} {kind} ({first}): {why}", style, width))
    for note in sweep_table.notes(points, by, of):
        rows.append(text_row(note, "dim", width))
    return rows if len(rows) > 1 else []


def key_of(point: Point) -> str:
    return POINT + str(point.members[0].index)


def markdown(points: Sequence[Point], keys: Sequence[str], by: By) -> list[str]:
    return table.markdown(sweep_table.heads(keys, by), map(sweep_table.cells, points))


def _single(point: Point) -> list[str]:
    one = point.members[0]
    texts = sweep_table.cells(point)
    texts[len(point.values)] = f"{one.id} {glyph(one.state)} {one.kind}"
    return texts


def _member(one: One, keys: int, by: By) -> list[str]:
    number = f"└ #{one.repeat}" if one.repeat is not None else "└"
    return [*[number, *[""] * keys][:keys], f"{one.id} {glyph(one.state)} {one.kind}",
            units.loss(one.best(by)), units.loss(one.last(by)), units.count(one.steps),
            units.clock(one.seconds), sweep_table.rate(one.samples_per_s)]


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
        self._figures = partial(figures_of, keep=not readonly.on)
        self.last: Gathered | None = None

    def gather(self) -> Gathered:
        """The members as they are now. Blocks. Raises UserError if the sweep is gone."""
        before = self.last
        group = before.group if before is not None else find(self.sweep)
        members = read(group, self._figures)
        by = before.by if before is not None else default_by(group, members)
        self.last = Gathered(group, members, by)
        return self.last
