"""Ending a run that hangs, with evidence: see `train.hang_timeout`.

That a rank is not heard of is no evidence: its disk may be slow or full, the thread that writes
its record may be gone. So a silent rank counts as hanging only where its process, seen from
outside, does nothing either: it uses no processor time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_engine.common import procs
from gpu_engine.events import hang
from gpu_engine.runs import stacks
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.supervisor.rank_state import RankState

_PATIENCE = 3.0
"""Seconds for the stacks to arrive; a rank that was stopped (SIGSTOP) writes none."""
_QUIET = 2.0
"""Seconds without a heartbeat from which on a rank's process is watched."""
_WATCHED = 3.0
"""The least seconds over which it must have done nothing."""
_IDLE = 0.001
"""Share of the time that a process may use which does nothing: helper threads look at a clock."""
_HZ = os.sysconf("SC_CLK_TCK")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Silence:
    """A rank since it was not heard of any more."""

    pid: int
    since: float
    """Monotonic seconds."""
    ticks: int | None
    """The processor time that its process had used by then; None: it can't be seen from here."""
    told: bool = False

    def idle(self, now: float) -> bool:
        """Whether the process has done nothing since."""
        ticks = procs.cpu_ticks(self.pid)
        if ticks is None or self.ticks is None:
            return False
        return (ticks - self.ticks - 2) / _HZ <= _IDLE * (now - self.since)


@dataclass(slots=True)
class Watch:
    """Looks at the ranks of one attempt."""

    run: Run
    timeout: float
    """Seconds; 0: off."""
    words: str = ""
    rank: int | None = None
    _asked: dict[int, int] | None = None
    _since: float = 0.0
    _silent: dict[int, _Silence] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether stacks were asked for."""
        return self._asked is not None

    def look(self, events: Mapping[int, RankState]) -> Cause | None:
        """A Cause once the run is found to hang and the evidence is there."""
        now = time.monotonic()
        if self._asked is None:
            signs = self._signs(events.values(), now)
            for sign in signs:
                self._watch(sign, events[sign.rank].view.pid, now)
            if not any(s.still > self.timeout and self._stands(s, now) for s in signs):
                return None
            self.words, self.rank = hang.describe(signs), hang.furthest_behind(signs).rank
            self._asked, self._since = self._ask(events), now
            return None
        if now - self._since < _PATIENCE and not self._complete():
            return None
        stack = self._stack(self.rank)
        return Cause(f"hang: {self.words} (train.hang_timeout = {self.timeout:g} s)", self.rank,
                     "Hang", stack)

    def _watch(self, sign: hang.Standstill, pid: int | None, now: float) -> None:
        """Note what a silent rank's process has done so far."""
        if sign.silent <= _QUIET or pid is None:
            self._silent.pop(sign.rank, None)
        elif sign.rank not in self._silent or self._silent[sign.rank].pid != pid:
            self._silent[sign.rank] = _Silence(pid, now, procs.cpu_ticks(pid))

    def _stands(self, sign: hang.Standstill, now: float) -> bool:
        """Whether it is the rank that stands still, and not only its record."""
        seen = self._silent.get(sign.rank)
        if seen is None:
            return sign.silent <= _QUIET
        if now - seen.since < max(self.timeout - hang.SILENT, _WATCHED):
            return False
        if seen.idle(now):
            return True
        if not seen.told:
            log.warning("rank %d has not been heard of for %.0f s, but its process works: not "
                        "taken for hanging (is the disk of the run folder slow or full?)",
                        sign.rank, sign.silent)
        # Watched anew: what it did a while ago says nothing about now.
        self._silent[sign.rank] = _Silence(seen.pid, now, procs.cpu_ticks(seen.pid), told=True)
        return False

    @staticmethod
    def _signs(events: Iterable[RankState], now: float) -> Sequence[hang.Standstill]:
        return [s.standing(now) for s in events if s.view.stepped and not s.view.ended]

    def _ask(self, events: Mapping[int, RankState]) -> dict[int, int]:
        """Have all ranks print their stacks; the ranks that will, with how long their logs are."""
        asked = {}
        for rank, seen in events.items():
            size = stacks.size_of(self.run.log(rank))
            pid = seen.view.pid
            if not seen.view.ended and pid is not None \
                    and stacks.send(pid, procs.start_ticks(pid)):
                asked[rank] = size
        return asked

    def _complete(self) -> bool:
        return all(self._stack(rank) for rank in self._asked or ())

    def _stack(self, rank: int | None) -> str | None:
        at = (self._asked or {}).get(rank) if rank is not None else None
        return None if at is None or rank is None else stacks.printed(self.run.log(rank), at)
