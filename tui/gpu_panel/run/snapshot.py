"""One look at a run's folder and processes, without the ranks' events. Blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from gpu_engine.common import procs
from gpu_engine.diagnose.hangs import SILENT
from gpu_engine.events.paths import ranks_with_files
from gpu_engine.events.rank_view import RankView
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room, leftovers, notes, waiting
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.waiting import Entry


class Turn(NamedTuple):
    place: int
    of: int
    entry: Entry


class Look(NamedTuple):
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
    turn: Turn | None
    """Its place in the queue; None: it is not in it."""
    named: str | None
    """The name that the person gave it; None: none but the one that it was started with."""


def look(run: Run, plan: LaunchPlan | None, attempt: int | None, views: Iterable[RankView],
         turn: Turn | None = None) -> Look:
    """Look at a run. `plan`, `attempt` and `turn`: those known so far; the plan is read again for
    another attempt, as a resume changes it, and once the run's turn has come or a rank is new, as
    only then its devices, or the nodes of its job, are known. Raises no OSError: what can't be read
    is left out."""
    state = run.state()
    waited, turn = turn is not None, None
    if state.state == "queued":
        line = waiting.line(waiting.folder_beside(run.path))
        if run.id in line:
            turn = Turn(list(line).index(run.id) + 1, len(line), line[run.id])
    seen = set(ranks_with_files(run.path))
    known = {r.rank for r in plan.ranks} if plan is not None else set[int]()
    if plan is None or attempt not in (None, state.attempt) or (waited and turn is None) \
            or seen - known:
        plan = run.plan()
        known = {r.rank for r in plan.ranks} if plan is not None else known
    left = leftovers.processes(run.path) if state.state == "lost" else []
    now, silent = time.time(), dict[int, int | None]()
    if state.live and (plan is None or not plan.on_hosts):  # there, their pids would mean others
        silent = {v.rank: v.pid for v in views
                  if v.beat is not None and v.outcome is None and now - v.beat > SILENT}
    # The state knows also the process of a rank that has not said its own.
    pids = silent | {p.rank: p.pid for p in state.processes if p.rank in silent and p.exit is None}
    return Look(state, sorted(seen | known), plan, left, _launchers(run),
                {rank: pid for rank, pid in pids.items()
                 if pid is not None and procs.suspended(pid)},
                disk_room.silence(run.path) if silent else None, turn, notes.read(run.path).name)


def _launchers(run: Run) -> list[str]:
    try:
        names = os.listdir(run.path)  # noqa: PTH208
    except OSError:
        return []
    return sorted(name[:-4] for name in names if name.startswith("node") and name.endswith(".log"))
