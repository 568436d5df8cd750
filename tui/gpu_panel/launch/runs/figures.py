"""The figures of one run in the list, from its events. Blocks: called in a thread.

A live run is followed in bounded batches. Of a run that has ended, a few pieces of each rank's file
are read, however long it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace

from gpu_engine.common.series import Series
from gpu_engine.diagnose import hangs
from gpu_engine.events.paths import ranks_with_files
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import sample
from gpu_engine.events.schema import Eval, Event, Metric, Schedule, Start, Step, Training
from gpu_engine.events.view import RunView
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.summary import Digest
from gpu_engine.sweep import figures
from gpu_engine.sweep.track import EVAL, LOSS, Extent
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.runs.line import RunLine

_MOST_RANKS = 16
"""Ranks of a finished run whose files are read."""
_PARTS = 10
"""Pieces of the first rank's file for the curve, which is ten cells wide."""
_MOST_VALUES = 200
_POINTS = 256
"""The most points of a live run's loss curve."""
_BUDGET = 0.05
"""Seconds that one reading of a live run may take."""


class LiveRun:
    """A live run, and what has been read of it."""

    def __init__(self, run: Run) -> None:
        self._follower = Follower(run)
        self._history = Series(_POINTS)
        self._values: dict[str, Extent] = {}
        """Of the first rank, which has all that is recorded once."""
        self._plan: LaunchPlan | None = None
        self._odd = next(iter(run.odd()), None)

    def read(self, line: RunLine, here: bool) -> RunLine:
        """`line` with what is known now. `here`: whether its processes are this machine's."""
        if self._plan is None:
            self._plan = line.run.plan()
        plan, follower = self._plan, self._follower
        for rank, told in follower.poll(budget=_BUDGET):
            if rank == min(follower.ranks):
                if isinstance(told, Eval | Metric):
                    _extend(self._values, told)
                for step in [told] if isinstance(told, Step) else () \
                        if isinstance(told, Event) else told.steps:
                    if step.loss is not None:
                        self._history.add(step.step, step.loss)
        now = follower.progress()
        node = plan.node_rank if plan is not None else 0
        pids = tuple((view.pid, rank) for rank, view in follower.ranks.items()
                     if view.pid is not None and view.node in (None, node)
                     and not (plan is not None and plan.on_hosts))
        line = replace(line, step=now.step, total=now.total_steps, loss=now.loss, pids=pids,
                       history=_means(self._history), read=True, odd=self._odd,
                       values=self._values | _losses(now.loss),
                       devices=_devices(plan) if here else ())
        if follower.behind:
            return line
        if line.state == "running" and (still := hangs.find_hang(
                follower.ranks.values(), time.time(), unheard=follower.state.unheard)) \
                and not still.works:
            unheard = disk_room.silence(line.run.path) if still.silent else None
            return replace(line, still=unheard or still.text)
        return replace(line, samples_per_s=now.samples_per_s, steps_per_s=now.steps_per_s,
                       seconds_left=now.seconds_left)


def with_end(line: RunLine, digest: Digest) -> RunLine:
    """The line of a run that has ended, with its last figures and the shape of its loss curve."""
    view = RunView()
    curve: list[tuple[int, float]] = []
    values: dict[str, Extent] = {}
    ranks = sorted(ranks_with_files(line.run.path))[:_MOST_RANKS]
    view.add(ranks)
    for rank in ranks:
        first = rank == ranks[0]
        for event in sample(line.run.events(rank), Start, Schedule, Step, Training, Eval, Metric,
                            parts=_PARTS if first else 1):
            view.fold(rank, event)
            if first and isinstance(event, Eval | Metric):
                _extend(values, event)
            if first and isinstance(event, Step) and event.loss is not None:
                curve.append((event.step, event.loss))
    end = view.progress()
    # The start of a long file is out of date if a resume has asked for more steps.
    total = _planned(digest, view.ranks.values()) or end.total_steps
    best = figures.of(line.run.path).values.get(LOSS) if line.sweep is not None else None
    last = {name: Extent(None, None, one.last) for name, one in values.items()}
    return replace(line, step=end.step, total=total, loss=end.loss, read=True,
                   values=last | _losses(end.loss),
                   best=best.least if best is not None else None,
                   history=_evenly(curve), samples_per_s=end.samples_per_s,
                   steps_per_s=end.steps_per_s, odd=next(iter(line.run.odd()), None))


def _evenly(curve: list[tuple[int, float]], points: int = 2 * _PARTS) -> tuple[float, ...]:
    """Means of a curve at evenly spaced steps; where a piece of the file was left out, the mean
    before it, and before the first the first: an event may be about many steps."""
    if not curve:
        return ()
    last = max(step for step, _ in curve)
    parts: list[list[float]] = [[] for _ in range(points)]
    for step, loss in curve:
        parts[min(step * points // max(last, 1), points - 1)].append(loss)
    out = [curve[0][1]]
    for part in parts:
        out.append(sum(part) / len(part) if part else out[-1])
    return tuple(out[1:])


def _means(curve: Series) -> tuple[float, ...]:
    """Of its buckets that have any value; NaN for one that has no finite one."""
    return tuple(total / count if count else math.nan for total, count, bad in
                 zip(curve.total, curve.count, curve.bad, strict=True) if count or bad)


def _losses(last: float | None) -> dict[str, Extent]:
    """The loss as a value of which only the last is known."""
    return {} if last is None else {LOSS: Extent(None, None, last)}


def _extend(values: dict[str, Extent], event: Eval | Metric) -> None:
    for name, value in event.values.items():
        full = (EVAL if isinstance(event, Eval) else "") + name
        before = values.get(full)
        if value is None or (before is None and len(values) >= _MOST_VALUES):
            continue
        known = [one for one in (value, *((before.least, before.greatest) if before else ()))
                 if one is not None and math.isfinite(one)]
        values[full] = Extent(min(known, default=None), max(known, default=None), value)


def _planned(digest: Digest, views: Iterable[RankView]) -> int | None:
    """The number of steps that the last attempt was to reach; None if that is unknown."""
    if digest.steps is not None:
        return digest.steps
    each = next((v.steps_per_epoch for v in views if v.steps_per_epoch), None)
    return each * digest.epochs if each and digest.epochs else None


def _devices(plan: LaunchPlan | None) -> tuple[tuple[str, int], ...]:
    """(key, rank) of all devices that the ranks use, here and on hosts: see `row_keys`."""
    return tuple((row_keys.of(r.host, d.id), r.rank)
                 for r in (plan.ranks if plan is not None else ()) for d in r.devices)
