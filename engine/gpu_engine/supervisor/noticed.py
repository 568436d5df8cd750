"""What is told of a run though it goes on or completes, from what its ranks have said. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_engine.common.errors import with_type
from gpu_engine.events import notices
from gpu_engine.runs.state import Notice
from gpu_engine.supervisor.rank_state import RankState


def notices_of(events: Mapping[int, RankState], *, losses: bool, completed: bool = False,
               shell: bool = False) -> tuple[Notice, ...]:
    """Everything there is to tell now, each kind once, the worst first. `losses`: whether a loss
    that is not finite is told of; a task may be told to end at one, or to leave it out.
    `completed`: whether the run has ended well, by its command's exit status. `shell`: whether that
    is a shell's."""
    views = [(rank, seen.run_view) for rank, seen in sorted(events.items())]
    told: dict[str, Notice] = {}
    ended = [seen.view for _, seen in sorted(events.items()) if completed and seen.begun]
    cure = (notices.IN_SHELL,) if shell else ()
    if failed := [(v.error.t, v) for v in ended if v.error is not None]:
        _, first = min(failed, key=lambda one: one[0])
        assert first.error is not None
        what = with_type(first.error.type, first.error.message.partition("\n")[0])
        told[notices.RANK_LOST] = Notice(
            notices.RANK_LOST, notices.failed(first.rank, what, first.error.step), cure, first.rank)
    elif gone := {v.rank: v.at_step or 0 for v in ended if v.outcome is None}:
        told[notices.RANK_LOST] = Notice(
            notices.RANK_LOST, notices.gone(gone), cure, min(gone))
    bad = [(view.bad_step[0], rank) for rank, view in views if view.bad_step is not None]
    if bad and losses:
        step, rank = min(bad)
        told[notices.NONFINITE] = Notice(
            notices.NONFINITE, notices.nonfinite(step, rank), rank=rank, step=step)
    for _, view in views:
        for code, (rank, warning) in view.told.items():
            told.setdefault(code, Notice(code, warning.message, warning.cure, rank))
    return tuple(sorted(told.values(), key=lambda one: notices.ORDER.index(one.code)
                        if one.code in notices.ORDER else len(notices.ORDER)))
