"""The tables of several runs as rows of text: the lines of a sweep, the figures of chosen runs, and
in what these differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_engine.common import table
from gpu_engine.common.clean import clean
from gpu_engine.common.table import GAP, Column
from gpu_engine.runs import compare
from gpu_engine.runs.compare import RunFacts
from gpu_engine.runs.digest import By
from gpu_engine.sweep import table as sweep_table
from gpu_engine.sweep.study import SoFar
from gpu_engine.sweep.table import FAILED, Point, short
from gpu_panel.common.rows import Line, Part, Row, cells, text_row
from gpu_panel.common.table import head, line
from gpu_panel.run.states import glyph, tone

POINT = "point "
"""Begins the key of a row that is a point with several members; other keys are runs' ids."""
_NARROW = 10
"""Cells of a value, where there is little room."""
Strokes = Mapping[str, Part]
"""A piece of the line of each run in the chart, by its id."""
_NO_STROKE: Part = "   ", ""


class Shown(NamedTuple):
    """A row: a run, or a point of several."""

    key: str
    ids: tuple[str, ...]
    """Of its runs."""
    texts: Sequence[str]
    sign: Part
    """Before it: whether its runs are shown below it, or a piece of its line."""
    style: str = ""
    why: Part = ("", "")
    """Why it has failed or was stopped."""


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[Column[Shown]]
    fixed: int
    """How many columns stay where the others are scrolled."""
    rows: Sequence[Shown]

    def build(self, width: int, skipped: int = 0) -> tuple[Line, list[Row]]:
        """(header, rows) for `width` cells. `skipped`: of the columns that are scrolled."""
        columns = [*self.columns[:self.fixed], *self.columns[self.fixed + skipped:]]
        front = max((cells(row.sign[0]) for row in self.rows), default=0)
        sizes = table.fit(columns, self.rows, width - front, cells)
        there, room = len(sizes), width - front
        while sum(sizes.values()) + GAP * len(sizes) > room and len(sizes) > self.fixed + 1:
            sizes.popitem()  # half a figure would be another one
        more = " ←" * (skipped > 0) + " →" * (len(sizes) < there)
        return ((" " * front + head(columns, sizes) + more, "dim"),), [
            Row(row.key, ((row.sign, ("".join(
                text for text, _ in line(columns, sizes, row)), row.style), row.why),))
            for row in self.rows]


def _column(at: int, title: str, *, right: bool, gives: tuple[tuple[int, int], ...] = ()
            ) -> Column[Shown]:
    return Column(str(at), title, lambda row: clean(row.texts[at]), stays=True, right=right,
                  gives=gives)


# --- a sweep --------------------------------------------------------------------------------------

def of_sweep(points: Sequence[Point], keys: Sequence[str], by: By, strokes: Strokes, *,
             unfolded: Collection[str] = ()) -> Table:
    """A line for each point. `unfolded`: keys of those whose members are shown below them."""
    # One that lacks members could lead by luck: its mean is of fewer.
    best = next((p for p in points if p.best.mean is not None and not p.partial), None)
    rows: list[Shown] = []
    for point in points:
        key, good = key_of(point), "good" * (point is best)
        if len(point.members) == 1:
            rows.append(_run(point, strokes, good))
            continue
        is_open = key in unfolded
        rows.append(Shown(key, tuple(one.id for one in point.members), sweep_table.cells(point),
                          ("▾  " if is_open else "▸  ", "dim"), good))
        for one in point.members if is_open else ():
            number = f"└ #{one.repeat}" if one.repeat is not None else "└"
            alone = replace(one, values=dict(zip(keys, (number, *[""] * len(keys)), strict=False)))
            style = tone(one.state)
            rows.append(_run(sweep_table.points([alone], by)[0], strokes,
                             "dim" if style == "good" else style))
    # Examples a second give way first, then time, steps, the last value; values stay.
    gives = [*[((9, _NARROW),)] * len(keys), (), (), *[((turn, 0),) for turn in (4, 3, 2, 1)]]
    return Table([_column(at, title, right=at > len(keys), gives=gives[at])
                  for at, title in enumerate(sweep_table.heads(keys, by))], len(keys), rows)


def _run(point: Point, strokes: Strokes, style: str) -> Shown:
    """The row of a point with one run."""
    one, texts = point.members[0], sweep_table.cells(point)
    texts[len(point.values)] = f"{one.id} {glyph(one.state)} {one.kind}"
    bad = "bad" * (one.kind == FAILED)
    return Shown(one.id, (one.id,), texts, strokes.get(one.id, _NO_STROKE), bad or style,
                 (f"  {one.why}" if one.why else "", bad or "dim"))


def below(points: Sequence[Point], by: By, of: int, width: int,
          search: SoFar | None = None) -> list[Row]:
    """What is said below the table: how far a search has got, what the figures are, and why runs
    have failed. `of`: how many runs were to be submitted."""
    rows = [text_row("")]
    for told in search.lines() if search is not None else ():
        rows.append(text_row(told, "", width))
    several = [m for p in points for m in p.members if len(p.members) > 1]
    for kind, told in sweep_table.causes(several):
        rows.append(text_row(told, "bad" if kind == FAILED else "dim", width))
    for note in sweep_table.notes(points, by, of):
        rows.append(text_row(note, "dim", width))
    return rows if len(rows) > 1 else []


def key_of(point: Point) -> str:
    return POINT + str(point.members[0].index)


def markdown(points: Sequence[Point], keys: Sequence[str], by: By) -> list[str]:
    return table.markdown(sweep_table.heads(keys, by), map(sweep_table.cells, points))


# --- chosen runs ----------------------------------------------------------------------------------

def of_chosen(runs: Sequence[RunFacts], found: Sequence[compare.Row], strokes: Strokes, *,
              right: bool) -> Table:
    """What each run has in each respect. `right`: whether these are figures."""
    heads = "run", "name", *short([row.name for row in found])
    return Table(
        [_column(at, title, right=right and at > 1) for at, title in enumerate(heads)], 2,
        [Shown(one.id, (one.id,),
               [one.id, one.name, *(compare.cell(row.values[i]) for row in found)],
               strokes.get(one.id, _NO_STROKE), "bad" * (tone(one.figures.state) == "bad"))
         for i, one in enumerate(runs)])
