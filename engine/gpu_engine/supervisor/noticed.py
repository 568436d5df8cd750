"""What is told of a run though it goes on or completes, from what its ranks have said. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_engine.events import notices
from gpu_engine.runs.state import Notice
from gpu_engine.supervisor.rank_state import RankState


def notices_of(events: Mapping[int, RankState], *, losses: bool) -> tuple[Notice, ...]:
    """Everything there is to tell now, each kind once, the worst first. `losses`: whether a loss
    that is not finite is told of; a task may be told to end at one, or to leave it out."""
    views = [(rank, seen.run_view) for rank, seen in sorted(events.items())]
    told: dict[str, Notice] = {}
    bad = [(view.bad_step[0], rank) for rank, view in views if view.bad_step is not None]
    if bad and losses:
        step, rank = min(bad)
        told[notices.NONFINITE] = Notice(
            notices.NONFINITE, notices.nonfinite(step, rank), rank=rank, step=step)
    worse = next((seen.trend.found for _, seen in sorted(events.items()) if seen.begun), None)
    if worse is not None and not bad:
        told[notices.DIVERGED] = Notice(notices.DIVERGED, notices.diverged(
            worse.loss, worse.best, worse.best_step, worse.since, worse.step),
            step=worse.since)
    for _, view in views:
        for code, (rank, warning) in view.told.items():
            told.setdefault(code, Notice(code, warning.message, warning.cure, rank))
    return tuple(sorted(told.values(), key=lambda one: notices.ORDER.index(one.code)
                        if one.code in notices.ORDER else len(notices.ORDER)))
