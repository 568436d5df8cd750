"""One start of all processes of a run on this node, and the verdict on how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Cause, RankProcess, Run
from gpu_engine.supervisor import logs, scripts
from gpu_engine.supervisor.cause import Failure, first_cause
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.rank_state import RankState
from gpu_engine.supervisor.stopping import Stopping

LINGER = 30.0
"""Seconds that ranks get to end once one of them has completed."""

Verdict = tuple[Literal["completed", "stopped", "failed"], "str | None", "Cause | None"]


@dataclass(slots=True)
class Attempt:
    """One start of all processes, as it goes."""

    number: int
    children: list[Child] = field(default_factory=list)
    events: dict[int, RankState] = field(default_factory=dict)
    stopping: Stopping | None = None
    """Set once the ranks were asked to stop."""
    late: bool = False
    """Whether ranks were let finish a save beyond the deadline."""
    leaving: bool = False
    """Whether that save has ended, and they were given time to leave."""
    forced: bool = False
    """Whether what was left was ended by force."""
    deadline: float | None = None
    """Monotonic seconds after which what is left is killed."""
    hang: Cause | None = None
    """Why it was ended as hanging."""

    @property
    def running(self) -> list[Child]:
        return [c for c in self.children if c.running]

    @property
    def going_on(self) -> bool:
        """Whether anything runs that is to be waited for: ranks that were asked to stop also when
        what had started them is gone."""
        if self.running:
            return True
        if self.stopping is None or self.forced:
            return False
        if not any(s.begun for s in self.events.values()):
            self.stopping.ask_all()
        return self.stopping.going_on

    def processes(self) -> tuple[RankProcess, ...]:
        return tuple(RankProcess(rank, c.pid, c.ticks, c.status)
                     for c in self.children for rank in c.ranks)

    @property
    def ended_in_words(self) -> str:
        """"rank 1 has" or "ranks 1, 3 have": those whose process has ended."""
        gone = [str(rank) for c in self.children if not c.running for rank in c.ranks]
        return f"ranks {', '.join(gone)} have" if len(gone) > 1 else f"rank {''.join(gone)} has"

    def too_early(self, child: Child) -> bool:
        """A task's rank that exits 0 without having said that it ended."""
        return any(self.events[r].view.outcome is None for r in child.ranks)

    def judge(self, run: Run, plan: LaunchPlan, *, is_task: bool, stop_asked: bool,
              oom_kills: int | None) -> Verdict:
        """How it ended, one line for people, and the cause where it failed. Everything of it has
        ended and was read."""
        if self.hang is not None and not stop_asked:
            return "failed", self.hang.line, self.hang
        failures = [
            Failure(rank, child.status or 0, child.ended or time.time(),
                    self.events[rank].view.error, logs.tail(self._log(run, plan, child, rank)),
                    child.role == "launcher")
            for child in self.children if not child.killed for rank in child.ranks
            if child.status != 0 or (is_task and self.too_early(child))
            or (is_task and self.events[rank].view.error is not None)
        ]
        if not is_task:
            failures += scripts.errors_below(self.events, self.children)
        if stop_asked:
            erred = [f for f in failures if f.error is not None and not f.in_wake]
            if not erred:
                words = None
                if self.forced:
                    words = "the ranks did not stop in time and were ended"
                elif self.late:
                    words = "its ranks were let finish saving beyond run.grace"
                return "stopped", words, None
        if not failures and self.forced:
            why = f"some ranks were still running {LINGER:.0f} s after the first had completed"
            return "failed", why, Cause(why)
        if not failures:
            if any(s.view.outcome == "stopped" for s in self.events.values()):
                return "stopped", "a rank was asked to stop, by a signal to it alone", None
            return "completed", None, None
        cause = first_cause(failures, oom_kills=oom_kills, batch=plan.batch,
                            disk=disk_room.of(run.path))
        return "failed", cause.line if cause is not None else None, cause

    @staticmethod
    def _log(run: Run, plan: LaunchPlan, child: Child, rank: int) -> Path:
        own = run.log(rank)
        if child.role == "rank":  # one process, one log, however many ranks
            return run.log(child.ranks[0])
        return own if own.exists() else run.path / f"node{plan.node_rank}.log"
