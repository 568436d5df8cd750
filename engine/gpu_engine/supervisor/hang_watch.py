"""Finding out that a run hangs, and collecting its stacks: see `train.hang_timeout`.

A rank without events need not hang: its disk may be slow or full, or the thread that writes its
events may have ended. So a silent rank counts as hanging only if its process also uses no processor
time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_engine.common import procs
from gpu_engine.common.files import size_of
from gpu_engine.diagnose import hangs
from gpu_engine.events import schema
from gpu_engine.runs import stacks
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.supervisor.ranks import RankState, append

_PATIENCE = 3.0
"""Seconds to wait for the stacks; a rank that was stopped (SIGSTOP) writes none."""
_QUIET = 2.0
"""Seconds without a heartbeat after which a rank's process is watched."""
_WATCHED = 3.0
"""For how many seconds at least the process must have been idle."""
_IDLE = 0.001
"""The share of the time that an idle process may use: helper threads look at a clock."""
_BUSY = 0.05
"""The share of a core from which on the process of a silent rank works."""
_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Silence:
    """The process of a silent rank."""

    pid: int
    since: float
    """When watching it began, monotonic seconds."""
    ticks: int | None
    """The processor time that it had used by then; None: it can't be seen from here."""
    waited: float = 0.0
    """Seconds for which its first thread had waited for a core by then."""
    told: str = ""
    """What was said of it last."""

    def idle(self, now: float) -> bool:
        """Whether the process has been idle since then."""
        ticks = procs.cpu_ticks(self.pid)
        if ticks is None or self.ticks is None:
            return False
        return (ticks - self.ticks - 2) / _HZ <= _IDLE * (now - self.since)

    def does(self, now: float) -> str:
        """What it has done since then, as `schema.Quiet` says it."""
        if procs.suspended(self.pid):
            return "suspended"
        used = ((procs.cpu_ticks(self.pid) or 0) - (self.ticks or 0)) / _HZ
        used += procs.turns(self.pid)[0] - self.waited
        return "works" if used > _BUSY * (now - self.since) else "sleeps"


@dataclass(slots=True)
class Watch:
    """Watches the ranks of one attempt for a hang."""

    run: Run
    timeout: float
    """The value of train.hang_timeout in seconds; 0: off."""
    text: str = ""
    """Which ranks stand still, once the run is found to hang."""
    rank: int | None = None
    """The rank that is furthest behind then."""
    _asked: dict[int, int] | None = None
    _since: float = 0.0
    _silent: dict[int, _Silence] = field(default_factory=dict)
    _quiet: dict[int, _Silence] = field(default_factory=dict)
    """For `say_what_silent_ranks_do`: what its last look at each has seen."""

    @property
    def waiting(self) -> bool:
        """Whether stacks were requested."""
        return self._asked is not None

    def judge(self, events: Mapping[int, RankState]) -> Cause | None:
        """Check the ranks. Returns the cause once the run hangs and its stacks are in the logs."""
        now = time.monotonic()
        if self._asked is None:
            signs = [s.standing(now) for s in events.values() if s.view.stepped and not s.view.over]
            for sign in signs:  # from a silent one it is seen by its process whether it works
                pid = events[sign.rank].view.pid
                if sign.silent <= _QUIET or pid is None:
                    self._silent.pop(sign.rank, None)
                elif sign.rank not in self._silent or self._silent[sign.rank].pid != pid:
                    self._silent[sign.rank] = _Silence(pid, now, procs.cpu_ticks(pid))
            if not any(s.still > self.timeout and self._stands(s, now) for s in signs):
                return None
            told = hangs.find_hang([seen.view for seen in events.values()], time.time(),
                                   at_least=self.timeout)
            self.text = hangs.describe(signs) if told is None else told.text
            self.rank = hangs.furthest_behind(signs).rank if told is None else told.rank
            self._asked, self._since = self._request_stacks(events), now
            return None
        if now - self._since < _PATIENCE and not all(self._stack(rank) for rank in self._asked):
            return None
        return Cause(f"hang: {self.text} (train.hang_timeout = {self.timeout:g} s)",
                     self.rank, "Hang", self._stack(self.rank))

    def say_what_silent_ranks_do(self, events: Mapping[int, RankState]) -> None:
        """Write of each rank of this machine from which nothing comes what its process does,
        whenever that has changed: native code may keep Python's lock, or others the cores."""
        now = time.monotonic()
        for rank, seen in events.items():
            view, known = seen.view, self._quiet.get(rank)
            if view.pid is None or view.over or now - seen.heard <= _QUIET \
                    or procs.start_ticks(view.pid) != view.started:
                self._quiet.pop(rank, None)
            elif known is None or now - known.since > _WATCHED:
                does = "" if known is None else known.does(now)
                if known is not None and does != known.told:
                    append(self.run, rank, schema.Quiet(does))
                self._quiet[rank] = _Silence(view.pid, now, procs.cpu_ticks(view.pid),
                                             procs.turns(view.pid)[0], does)

    def _stands(self, sign: hangs.Standstill, now: float) -> bool:
        """Whether the rank itself stands still, and not only the writing of its events."""
        seen = self._silent.get(sign.rank)
        if seen is None:
            return sign.silent <= _QUIET
        if now - seen.since < max(self.timeout - hangs.SILENT, _WATCHED):
            return False
        if seen.idle(now):
            return True
        # Begin again: what it did a while ago says nothing about now.
        self._silent[sign.rank] = _Silence(seen.pid, now, procs.cpu_ticks(seen.pid))
        return False

    def _request_stacks(self, events: Mapping[int, RankState]) -> dict[int, int]:
        """Let all ranks print their stacks. Returns the ranks that will, and their logs' sizes."""
        asked = {}
        for rank, seen in events.items():
            size = size_of(self.run.log(rank))
            pid = seen.view.pid
            if not seen.view.ended and pid is not None \
                    and stacks.send(pid, procs.start_ticks(pid), self.run):
                asked[rank] = size
        return asked

    def _stack(self, rank: int | None) -> str | None:
        at = (self._asked or {}).get(rank) if rank is not None else None
        return None if at is None or rank is None else stacks.printed(self.run.log(rank), at)
