"""What a person's own command has left running at its end, as `bash run.sh` does whose last line is
`python train.py &`, or a script that forks twice.

While something of it trains, or may be about to, the run goes on. All else is ended with the run
and named, as it may be made to run for ever: TensorBoard, a server, a worker that nobody waits for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.plan.own_command import is_python
from gpu_engine.supervisor.rank_state import RankState

START = 30.0
"""Seconds that a Python has from its start until it has loaded torch; and a process with torch, if
another one has trained, until it trains too."""
_OTHERS = 2.0
"""Seconds for everything else to end by itself, or to start what trains."""
_TORCH = b"/torch/lib/libtorch"
_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class LeftRunning:
    """The processes of one attempt whose started processes have all ended well."""

    waited: set[int] = field(default_factory=set)
    """The pids of all that have trained, or were about to."""
    seen: set[int] = field(default_factory=set)
    """The pids of all, also of those that were a shell's fork when they were seen, and have ended
    since, as a Python does whose script has a mistake."""
    going_on: set[int] = field(default_factory=set)
    """Those that run now and are waited for without a limit."""
    rest: dict[int, str] = field(default_factory=dict)
    """The others that run now, pid and name of the program."""
    _since: float | None = None
    """When something trained last, or else the command ended; seconds since boot."""
    _with_torch: set[int] = field(default_factory=set)

    def check(self, events: Mapping[int, RankState], below: Sequence[int]) -> bool:
        """Look once. `below`: the pids of all that the command has started and that still run.
        Returns whether there is anything to wait for."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._since = self._since or now
        self.seen.update(below)
        views = [seen.view for seen in events.values()]
        trained = any(view.stepped for view in views)
        ranks = {view.pid for view in views if not view.ended
                 and procs.alive(view.pid, view.started)}
        ends = {pid: math.inf if pid in ranks else self._limit(pid, trained, self._since)
                for pid in below}
        self.going_on = {pid for pid, end in ends.items() if end == math.inf}
        self.waited |= self.going_on
        self.rest = {pid: procs.program(pid) for pid in below if pid not in self.going_on}
        if self.going_on:
            self._since = now
        return any(now < end for end in ends.values())

    def _limit(self, pid: int, trained: bool, since: float) -> float:
        """How long a process that is no rank may run on, seconds since boot."""
        if self._has_torch(pid):
            return since + START if trained else math.inf
        started = procs.start_ticks(pid)
        if started is not None and is_python(procs.program(pid)):
            self.waited.add(pid)
            return max(since + _OTHERS, started / _HZ + START)
        return since + _OTHERS

    def _has_torch(self, pid: int) -> bool:
        if pid not in self._with_torch:
            try:
                if _TORCH not in Path(f"/proc/{pid}/maps").read_bytes():
                    return False
            except OSError:  # it is gone, or another user's
                return False
            self._with_torch.add(pid)
        return True


def named(pids: Mapping[int, str]) -> str:
    """Some processes, in words: "tensorboard (pid 12), sleep (pid 13)"."""
    return ", ".join(f"{name or '?'} (pid {pid})" for pid, name in list(pids.items())[:5]) \
        + (" and others" if len(pids) > 5 else "")
