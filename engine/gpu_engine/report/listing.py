"""Runs as the lines of a list, with their figures: for the command line and for the page."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.table import Column, finite, in_order
from gpu_engine.diagnose import hangs
from gpu_engine.events.reader import END, backwards
from gpu_engine.events.schema import Step
from gpu_engine.runs import digest, folder
from gpu_engine.runs.digest import By, Figures, Summary, compared_by
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.query import Query


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the list."""

    one: Summary
    figures: Figures
    by: By
    """The value by which it is compared."""

    @property
    def best(self) -> float | None:
        """The best one; None: it has none that is finite."""
        return self.by.best(self.figures.values)


def found_runs(asked: Query, count: int, *, by: str = "created", reverse: bool = False,
               compared: str | None = None, since: float = 0.0) -> tuple[list[Row], int]:
    """The first `count` runs that match, made at `since` (Unix seconds) or later, with their
    figures, and how many more there are. `compared`: the value that is compared, as run.best has
    it; None: each run's own."""
    newest = by == "created" and not reverse
    if newest and not asked and not since:
        every = folder.all_runs()
        found, more = [digest.summary(run) for run in every[:count]], max(len(every) - count, 0)
    else:
        found = [one for one in map(digest.summary, folder.each_run())
                 if one.digest.created >= since and (not asked or asked.matches(one.asked))]
        found.sort(key=lambda one: -one.digest.created)
        found, more = found[:count] if newest else found, max(len(found) - count, 0)
    rows = []
    for one in found:
        figures = one.digest.figures or digest.make(one.run).figures or Figures()
        rows.append(Row(one, figures, compared_by(compared or one.digest.best, figures.values)))
    if newest:
        return rows, more
    column = next(column for column in COLUMNS if column.name == by)
    return in_order(rows, column, turned=reverse)[:count], more


def parts(count: int, now: float) -> list[tuple[str, ...]]:
    """The lines of at most so many parts of runs that other machines have started here, the newest
    first, under their heads; none where there are none."""
    lines = [("part", "state", "of run", "started by", "name", "on", "created")]
    for part, of in folder.foreign_parts()[:count]:
        state, plan = part.state(), part.plan()
        devices = dict.fromkeys(d.label for r in (plan.ranks if plan else ()) for d in r.devices)
        lines.append((part.id, state.state, clean(of.run, 32), clean(of.machine, 30),
                      clean(state.name, 16), clean(", ".join(devices), 30),
                      units.ago(now - state.created)))
    return lines if lines[1:] else []


def _why(one: Summary) -> list[str]:
    """The reason for a run's state, what hangs, and the first file of its folder that can't be
    read."""
    reason, warnings = one.digest.reason, one.digest.warnings
    odd = [odd for odd in one.run.odd()[:1] if odd != reason]
    told = [f"warning: {message}" for message in warnings[:1]]
    if len(warnings) > 1:
        told = [f"{told[0]} (and {len(warnings) - 1} more)"]
    hang = _hang(one)
    return [*([reason] if reason else []), *([hang] if hang else []), *told, *odd]


def _hang(one: Summary) -> str | None:
    """Which ranks stand still, if the run goes on without making steps. Only then all of its events
    are read."""
    run, now = one.run, time.time()
    if one.digest.state != "running" or all(
            (step := next(backwards(run.events(rank), Step, within=END), None)) is not None
            and now - step.t < hangs.SOON for rank in run.ranks()):
        return None
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    return hangs.alarm_of(follower.ranks.values(), run.path, now, follower.state.unheard)


def _mode(row: Row) -> str:
    said = row.one.digest
    return f"{clean(said.mode, 10) or '?'} ×{said.world_size or '?'}"


def _best(row: Row) -> str:
    return "" if row.best is None else f"{clean(row.by.name, 20)} {units.loss(row.best)}"


def _remarks(row: Row) -> str:
    tags = row.one.notes.tags
    return " ".join([*([f"[{', '.join(tags)}]"] if tags else []),
                     "; ".join(map(clean, _why(row.one)))]).strip()


COLUMNS: tuple[Column[Row], ...] = (
    Column("id", "id", lambda r: r.one.run.id),
    Column("state", "state", lambda r: r.one.digest.state, order=lambda r: r.one.digest.state),
    Column("name", "name", lambda r: clean(r.one.name, 16), order=lambda r: r.one.name),
    Column("mode", "mode", _mode),
    Column("steps", "steps", lambda r: "" if r.figures.steps is None else
           units.count(r.figures.steps), order=lambda r: r.figures.steps, falls=True),
    Column("loss", "loss", lambda r: "" if r.figures.loss is None else
           units.loss(r.figures.loss), order=lambda r: finite(r.figures.loss)),
    Column("best", "best", _best, order=lambda r: -r.best if r.best is not None
           and r.by.largest else r.best),
    Column("verdict", "verdict", lambda r: r.one.notes.verdict or ""),
    Column("took", "took", lambda r: units.clock(r.one.digest.seconds),
           order=lambda r: r.one.digest.seconds, falls=True),
    Column("created", "created", lambda r: units.ago(time.time() - r.one.digest.created),
           order=lambda r: r.one.digest.created, falls=True),
    Column("remarks", "", _remarks),
)
"""Those in which no run has anything are left out."""
