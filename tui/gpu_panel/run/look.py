"""One look at a run's folder and processes, without the ranks' events. Blocks: call it in a
thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import NamedTuple

from gpu_engine.common import procs
from gpu_engine.events import hang
from gpu_engine.events.rank_view import RankView
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room, leftovers
from gpu_engine.runs.folder import Run, State


class Look(NamedTuple):
    """What one look has found."""

    state: State
    ranks: list[int]
    plan: LaunchPlan | None
    left: list[int]
    """Pids of a lost run's processes that still run."""
    launchers: list[str]
    """Names of the logs that launchers write, one for each node: "node0"."""
    suspended: dict[int, int]
    """Rank → pid of silent ranks that a signal has stopped."""
    unheard: str | None
    """Why there is no news of the ranks, if the disk is the cause."""


def look(run: Run, plan: LaunchPlan | None, attempt: int | None, views: Iterable[RankView]) -> Look:
    """Look at a run. `plan` and `attempt`: those known so far; the plan is read again for another
    attempt, as a resume changes it. Raises no OSError: what can't be read is left out."""
    ranks: list[int] = []
    launchers: list[str] = []
    with contextlib.suppress(OSError):
        ranks = run.ranks()
        launchers = sorted(p.stem for p in run.path.glob("node*.log"))
    state = run.state()
    if plan is None or attempt not in (None, state.attempt):
        plan = run.plan()
    left = leftovers.processes(run.path) if state.state == "lost" else []
    here = plan is None or not plan.on_hosts
    silent = _silent(views) if state.live and here else {}
    return Look(state, ranks, plan, left, launchers, _suspended(state, silent),
                disk_room.silence(run.path) if silent else None)


def _silent(views: Iterable[RankView]) -> dict[int, int | None]:
    """Rank → pid."""
    now = time.time()
    return {v.rank: v.pid for v in views
            if v.beat is not None and v.outcome is None and now - v.beat > hang.SILENT}


def _suspended(state: State, silent: dict[int, int | None]) -> dict[int, int]:
    pids = silent | {p.rank: p.pid for p in state.processes if p.rank in silent and p.exit is None}
    return {rank: pid for rank, pid in pids.items() if pid is not None and procs.suspended(pid)}
