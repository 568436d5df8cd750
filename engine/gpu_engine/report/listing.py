"""Runs as the lines of a list, with their figures: for the command line and for the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.diagnose import hangs
from gpu_engine.events.reader import END, backwards
from gpu_engine.events.schema import Step
from gpu_engine.runs import digest, disk_room, folder
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


HEADS = ("id", "state", "name", "mode", "steps", "loss", "best", "verdict", "took", "created", "")
_MAY_LACK = ("steps", "loss", "best", "verdict", "")
"""Columns that are left out where no run has anything in them."""


def found_runs(asked: Query, count: int, now: float, *, by: str = "created",
               reverse: bool = False, compared: str | None = None, since: float = 0.0
               ) -> tuple[list[Row], int]:
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
    keys = [(_key(row, by, now), row) for row in rows]
    known = [(key, row) for key, row in keys if key is not None]
    known.sort(key=lambda each: each[0], reverse=reverse)
    return [row for _, row in [*known, *(each for each in keys if each[0] is None)]][:count], more


def _key(row: Row, by: str, now: float) -> float | str | None:
    """What rows are sorted by; None: the run lacks it."""
    said, loss = row.one.digest, row.figures.loss
    if by == "loss":
        return loss if loss is not None and math.isfinite(loss) else None
    if by == "best":
        return -row.best if row.best is not None and row.by.largest else row.best
    if by in ("steps", "took"):
        most = row.figures.steps if by == "steps" else said.seconds
        return None if most is None else -most
    return {"created": -said.created, "name": row.one.name, "state": said.state}[by]


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


def _line(row: Row, now: float) -> tuple[str, ...]:
    one, said, figures = row.one, row.one.digest, row.figures
    tags = [f"[{', '.join(one.notes.tags)}]"] if one.notes.tags else []
    return (one.run.id, said.state, clean(one.name, 16),
            f"{clean(said.mode, 10) or '?'} ×{said.world_size or '?'}",
            "" if figures.steps is None else units.count(figures.steps),
            "" if figures.loss is None else units.loss(figures.loss),
            "" if row.best is None else f"{clean(row.by.name, 20)} {units.loss(row.best)}",
            one.notes.verdict or "",
            units.clock(said.seconds), units.ago(now - said.created),
            " ".join([*tags, "; ".join(map(clean, _why(one, now)))]).strip())


def _why(one: Summary, now: float) -> list[str]:
    """The reason for a run's state, what hangs, and the first file of its folder that can't be
    read."""
    reason, warnings = one.digest.reason, one.digest.warnings
    odd = [odd for odd in one.run.odd()[:1] if odd != reason]
    told = [f"warning: {message}" for message in warnings[:1]]
    if len(warnings) > 1:
        told = [f"{told[0]} (and {len(warnings) - 1} more)"]
    hang = _hang(one, now)
    return [*([reason] if reason else []), *([hang] if hang else []), *told, *odd]


def _hang(one: Summary, now: float) -> str | None:
    """Which ranks stand still, if the run goes on without making steps. Only then all of its events
    are read."""
    run = one.run
    if one.digest.state != "running" or all(
            (step := next(backwards(run.events(rank), Step, within=END), None)) is not None
            and now - step.t < hangs.SOON for rank in run.ranks()):
        return None
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    hang = hangs.find_alarm(follower.ranks.values(), now, unheard=follower.state.unheard)
    if hang is None:
        return None
    return (disk_room.silence(run.path) if hang.silent else None) or hang.text


def cells(rows: list[Row], now: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads and the lines, without the columns in which no run has anything."""
    lines = [_line(row, now) for row in rows]
    kept = [at for at, head in enumerate(HEADS) if head not in _MAY_LACK
            or any(each[at] for each in lines)]
    return tuple(HEADS[at] for at in kept), [tuple(each[at] for at in kept) for each in lines]
