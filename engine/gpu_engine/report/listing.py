"""Runs as the lines of a list, with their figures: for the command line and for the page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.diagnose import hangs
from gpu_engine.events.reader import END, backwards
from gpu_engine.events.schema import Step
from gpu_engine.runs import disk_room, folder, summary
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.query import Query
from gpu_engine.runs.summary import Digest
from gpu_engine.sweep.figures import By, Figures, FiguresOf, compared_by

Row: TypeAlias = tuple[Digest, Figures]

HEADS = ("id", "state", "name", "mode", "steps", "loss", "best", "verdict", "took", "created", "")
_MAY_LACK = ("steps", "loss", "best", "verdict", "")
"""Columns that are left out where no run has anything in them."""


def found_runs(asked: Query, count: int, now: float, *, by: str = "created",
               reverse: bool = False, compared: str | None = None, since: float = 0.0
               ) -> tuple[list[Row], int]:
    """The first `count` runs that match, made at `since` (Unix seconds) or later, with their
    figures, and how many more there are. `compared`: the value that is compared, as run.best has
    it; None: each run's own."""
    every, figures = folder.all_runs(), FiguresOf()
    newest = by == "created" and not reverse
    if newest and not asked and not since:
        found, more = [summary.read(run) for run in every[:count]], max(len(every) - count, 0)
    else:
        found = [one for one in map(summary.read, every)
                 if one.state.created >= since and asked.matches(one.asked)]
        found, more = found[:count] if newest else found, max(len(found) - count, 0)
    rows = [(replace(one, best=compared or one.best), figures.read(one.run, one.state))
            for one in found]
    if newest:
        return rows, more
    keys = [(_key(row, by, now), row) for row in rows]
    known = [(key, row) for key, row in keys if key is not None]
    known.sort(key=lambda each: each[0], reverse=reverse)
    return [row for _, row in [*known, *(each for each in keys if each[0] is None)]][:count], more


def _key(row: Row, by: str, now: float) -> float | str | None:
    """What rows are sorted by; None: the run lacks it."""
    one, figures = row
    if by == "loss":
        loss = last_loss(figures)
        return loss if loss is not None and math.isfinite(loss) else None
    if by == "best":
        compared, value = best(one, figures)
        return -value if value is not None and compared.largest else value
    if by in ("steps", "took"):
        most = figures.steps if by == "steps" else one.state.took(now)
        return None if most is None else -most
    return {"created": -one.state.created, "name": one.name, "state": one.state.state}[by]


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


def _line(one: Digest, figures: Figures, now: float) -> tuple[str, ...]:
    state, (by, value) = one.state, best(one, figures)
    tags = [f"[{', '.join(one.notes.tags)}]"] if one.notes.tags else []
    return (one.run.id, state.state, clean(one.name, 16),
            f"{clean(one.mode, 10) or '?'} ×{one.world_size or '?'}",
            "" if figures.steps is None else units.count(figures.steps),
            "" if last_loss(figures) is None else units.loss(last_loss(figures)),
            "" if value is None else f"{clean(by.name, 20)} {units.loss(value)}",
            one.notes.verdict or "",
            units.clock(state.took(now)), units.ago(now - state.created),
            " ".join([*tags, "; ".join(map(clean, _why(one, now)))]).strip())


def last_loss(figures: Figures) -> float | None:
    """The loss of the last step, which may not be finite; None: not known."""
    found = figures.values.get("loss")
    return None if found is None else found.last


def best(one: Digest, figures: Figures) -> tuple[By, float | None]:
    """By which value the run is compared, and its best one; None: it has none that is finite."""
    by = compared_by(one.best, figures.values)
    return by, by.best(figures.values)


def _why(one: Digest, now: float) -> list[str]:
    """The reason for a run's state, what hangs, and the first file of its folder that can't be
    read."""
    reason = one.state.reason
    odd = [odd for odd in one.run.odd()[:1] if odd != reason]
    told = [f"warning: {notice.message}" for notice in one.state.warnings[:1]]
    if len(one.state.warnings) > 1:
        told = [f"{told[0]} (and {len(one.state.warnings) - 1} more)"]
    hang = _hang(one, now)
    return [*([reason] if reason else []), *([hang] if hang else []), *told, *odd]


def _hang(one: Digest, now: float) -> str | None:
    """Which ranks stand still, if the run goes on without making steps. Only then all of its events
    are read."""
    run = one.run
    if one.state.state != "running" or all(
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
    lines = [_line(one, figures, now) for one, figures in rows]
    kept = [at for at, head in enumerate(HEADS) if head not in _MAY_LACK
            or any(each[at] for each in lines)]
    return tuple(HEADS[at] for at in kept), [tuple(each[at] for at in kept) for each in lines]
