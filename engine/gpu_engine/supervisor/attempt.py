"""One start of all processes of a run on this node, and the verdict on how it ended."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpu_engine.diagnose import hangs
from gpu_engine.plan import own_command
from gpu_engine.plan.own_command import is_python
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room, stacks
from gpu_engine.runs.folder import Cause, RankProcess, Run
from gpu_engine.supervisor import logs, ranks
from gpu_engine.supervisor.cause import Failure, Given, exits_in, first_cause, root_in
from gpu_engine.supervisor.children import Child, childless, descendants
from gpu_engine.supervisor.device_record import DeviceRecord
from gpu_engine.supervisor.ranks import RankState
from gpu_engine.supervisor.stopping import Stopping

ALONE = "a rank was stopped by a signal to it alone"
_OTHER_SIZE = "Received data size doesn't match expected size"
"""Said by gloo (transport/tcp/pair.cc) when it ends a process."""
_SIZES = re.compile(rf"([1-9]\d*) vs (\d+)\. {_OTHER_SIZE}")
"""Bytes that it got and that it had asked for, of a part of the whole."""
LINGER = 30.0
"""Seconds that the other ranks get to complete once the process of one has ended well."""

Verdict = tuple[Literal["completed", "stopped", "failed"], "str | None", "Cause | None"]


@dataclass(slots=True)
class Attempt:
    """The state of one start of all processes."""

    number: int
    children: list[Child] = field(default_factory=list)
    events: dict[int, RankState] = field(default_factory=dict)
    stopping: Stopping | None = None
    """Set once the ranks were told to stop."""
    late: bool = False
    """Whether ranks were allowed to finish a save after the deadline."""
    save_until: float = math.inf
    """When that is over for a script, monotonic seconds."""
    leaving: bool = False
    """Whether that save is done and the ranks have some more time to end."""
    forced: bool = False
    """Whether the remaining processes were killed."""
    pressed: str | None = None
    """Why SIGTERM followed the signal of the stop."""
    at_once: bool = False
    """Whether that was asked for."""
    bad: bool = False
    """Whether a process has failed."""
    deadline: float | None = None
    """When the remaining processes are killed, monotonic seconds."""
    orphans: dict[int, int] = field(default_factory=dict)
    """The exit statuses of processes that have become our children and ended by themselves."""
    devices: DeviceRecord | None = None
    """The record of its devices, which may have a process of its own."""
    ended_by_us: set[int] = field(default_factory=set)
    """The pids of what still ran when the processes that were started had ended."""
    left: dict[int, str] = field(default_factory=dict)
    """What a person's own command has left running at its end: pid and program."""
    beside: Cause | None = None
    """What another node has met, which ends this attempt here."""
    hang: Cause | None = None
    """Set if it was ended because it hung."""

    @property
    def running_children(self) -> list[Child]:
        """The started processes that still run."""
        return [c for c in self.children if c.running]

    @property
    def going_on(self) -> bool:
        """Whether any process must be waited for: also ranks that were told to stop, if the process
        that started them has ended."""
        if self.running_children:
            return True
        if self.forced or self.stopping is None:
            return False
        if not any(s.begun for s in self.events.values()):
            self.stopping.signal_all(self.below())
        return self.stopping.going_on

    def below(self) -> list[int]:
        """All processes below this one but its own, which reads the GPUs."""
        if childless():
            return []
        ours = None if self.devices is None else self.devices.pid
        return [pid for pid in descendants(os.getpid()) if pid != ours]

    @property
    def only_leaving(self) -> bool:
        """Whether each rank that still runs has said how it ended, and none has failed: it may
        take its time, as with an upload at its end."""
        return not self.bad and all(self.events[r].view.outcome in ("completed", "stopped")
                                    for c in self.running_children for r in c.ranks)

    def processes(self) -> tuple[RankProcess, ...]:
        """The processes as state.json lists them, one entry per rank."""
        return tuple(RankProcess(rank, c.pid, c.ticks, c.status)
                     for c in self.children for rank in c.ranks)

    @property
    def ended_ranks(self) -> str:
        """The ranks whose process has ended, in words: "rank 1 has" or "ranks 1, 3 have"."""
        gone = [str(rank) for c in self.children if not c.running for rank in c.ranks]
        return f"ranks {', '.join(gone)} have" if len(gone) > 1 else f"rank {''.join(gone)} has"

    def too_early(self, child: Child) -> bool:
        """Whether a task's rank has exited with 0 but without an end event."""
        return any(self.events[r].view.outcome is None for r in child.ranks)

    def after_end(self, child: Child) -> bool:
        """Whether a signal ended a process whose training had ended by itself: mostly native code
        that is too late for the interpreter's end, as gloo's threads may be. It harms no other."""
        views = [self.events[r].view for r in child.ranks]
        return (child.status or 0) < 0 and all(v.ended and v.error is None for v in views)

    def judge(self, run: Run, plan: LaunchPlan, *, is_task: bool, stop_asked: bool,
              oom_kills: int | None, time_up: str | None = None) -> Verdict:
        """How the attempt ended: (outcome, one line for people, the cause if it failed). Called
        once all processes have ended and all events are read. `time_up`: that its
        time was up, in words: then it has completed, unless it had to be killed."""
        if self.hang is not None and not stop_asked:
            return "failed", self.hang.line, self.hang
        # A launcher's exit status says only that some rank has failed: what its ranks have said
        # themselves outranks it.
        below = self._failed_below(run, plan)
        failures = below + [
            Failure(rank, child.status or 0, child.ended or time.time(),
                    self.events[rank].view.error, logs.tail(self._log(run, plan, child, rank)),
                    child.role == "launcher", child.asked, self.after_end(child))
            for child in self.children if not child.killed for rank in child.ranks
            if (child.status != 0 or (is_task and self.too_early(child))
                or (is_task and self.events[rank].view.error is not None))
            and not (below and self.events[rank].view.pid != child.pid)  # it passes that on
        ]
        if stop_asked:
            # Who is interrupted may end with any status: only an error counts, of a rank's own.
            erred = [f for f in failures if f.error is not None and not f.in_wake
                     and f.error.type != "KeyboardInterrupt"]
            if not erred:
                words = None
                if self.at_once:
                    words = "the ranks were killed at once, as was asked"
                elif self.forced:
                    words = "the ranks did not stop in time and were killed"
                elif self.late:
                    words = "its ranks took longer than run.grace to finish saving"
                elif self.pressed:
                    words = f"its ranks got SIGTERM as {self.pressed}: what they had not saved " \
                        "is lost"
                if time_up is not None and self.forced:
                    why = f"{time_up}; {words}"
                    return "failed", why, Cause(why)
                return ("stopped", words, None) if time_up is None else ("completed", time_up, None)
        if not failures and self.forced:
            why = f"some ranks were still running {LINGER:.0f} s after the first had completed"
            return "failed", why, Cause(why)
        if not failures:
            if any(s.view.outcome == "stopped" for s in self.events.values()):
                return ("stopped", ALONE, None) if time_up is None else ("completed", time_up, None)
            # `python train.py &` in a shell: the shell was done before the first step.
            if any(map(is_python, self.left.values())) \
                    and not any(s.view.stepped for s in self.events.values()):
                why = f"the command has ended and left running {named(self.left)}, which was " \
                    "ended with it: leave out the & behind it, or have the script end with wait"
                return "failed", why, Cause(why)
            return "completed", None, None
        cause = first_cause(failures, oom_kills=oom_kills, given=Given.by(plan),
                            disks=[disk_room.of(p) for p in (run.path, Path(plan.runs_in))])
        if cause is not None and (more := self._who_did_not_come(failures)):
            cause = replace(cause, message=f"{more}{'' if more.endswith('?') else '.'}\n"
                                           f"{cause.message}")
        if cause is not None and cause.message == "exited with 124" \
                and (up := own_command.timed_out(plan.spec.task.command or ("",))):
            cause = replace(cause, message=f"{up} has ended the command, as its time was up")
        return "failed", cause.line if cause is not None else None, cause

    def _failed_below(self, run: Run, plan: LaunchPlan) -> list[Failure]:
        """How ranks have failed that a launcher or a person's own command has started."""
        ends: dict[int | None, int] = {**self.orphans}
        shared = [self._log(run, plan, child, -1) for child in self.children]
        log = "".join(map(logs.tail, shared))
        for pid, status in exits_in(log).items():
            ends.setdefault(pid, status)
        failures = ranks.failed_below(
            self.events, self.children, ends, self.ended_by_us,
            lambda rank: log if run.log(rank) in shared or not run.log(rank).exists()
            else logs.tail(run.log(rank)))
        root, ended = root_in(log), next((c.ended for c in self.children if c.status), None)
        if root is not None and ended and root[0] not in [f.rank for f in failures]:
            failures.append(Failure(*root, ended))  # not seen: it was before its first step
        return failures

    def _who_did_not_come(self, failures: Sequence[Failure]) -> str | None:
        """If ranks failed only as a connection broke or time was up: who did not come to the
        collective operation that they were in, or came with another; None if that is not known."""
        views = [s.view for s in self.events.values()]
        ended = [f for f in failures if _OTHER_SIZE in f.log_tail]
        if ended:  # a log may be of several ranks: the one that could say an error was not ended
            lines = {v.rank: stacks.raised_at(v.error.traceback or "") for v in views
                     if v.error is not None and v.stands is None}
            return hangs.another_size(views, lines | {
                f.rank: stacks.crashed_at(f.log_tail) for f in ended if f.error is None},
                {f.rank: int(asked) / int(got) for f in ended
                 for got, asked in _SIZES.findall(f.log_tail)[-1:]})
        if not all(f.in_wake for f in failures):
            return None
        told = hangs.behind(views, min(f.when for f in failures),
                            {f.rank for f in failures if f.error is not None})
        return None if told is None else told.text

    @staticmethod
    def _log(run: Run, plan: LaunchPlan, child: Child, rank: int) -> Path:
        own = run.log(rank)
        if child.role == "rank":  # one process, one log, however many ranks
            return run.log(child.ranks[0])
        return own if own.exists() else run.path / f"node{plan.node_rank}.log"


def named(pids: Mapping[int, str]) -> str:
    """Some processes, in words: "tensorboard (pid 12), sleep (pid 13)"."""
    return ", ".join(f"{name or '?'} (pid {pid})" for pid, name in list(pids.items())[:5]) \
        + (" and others" if len(pids) > 5 else "")
