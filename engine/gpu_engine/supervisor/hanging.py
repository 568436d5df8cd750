"""Ending a run that hangs, with evidence: see `train.hang_timeout`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_engine import hang, procs, stacks
from gpu_engine.runs import Cause, Run
from gpu_engine.supervisor.seen import Seen

_PATIENCE = 3.0
"""Seconds for the stacks to arrive; a rank that was stopped (SIGSTOP) writes none."""


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

    @property
    def waiting(self) -> bool:
        """Whether stacks were asked for."""
        return self._asked is not None

    def look(self, events: Mapping[int, Seen]) -> Cause | None:
        """A Cause once the run is found to hang and the evidence is there."""
        now = time.monotonic()
        if self._asked is None:
            signs = self._signs(events.values(), now)
            if not signs or max(s.still for s in signs) <= self.timeout:
                return None
            self.words, self.rank = hang.words(signs), hang.behind(signs).rank
            self._asked, self._since = self._ask(events), now
            return None
        if now - self._since < _PATIENCE and not self._complete():
            return None
        stack = self._stack(self.rank)
        return Cause(f"hang: {self.words} (train.hang_timeout = {self.timeout:g} s)", self.rank,
                     "Hang", stack)

    @staticmethod
    def _signs(events: Iterable[Seen], now: float) -> Sequence[hang.Sign]:
        return [s.sign(now) for s in events if s.stepped and not s.ended]

    def _ask(self, events: Mapping[int, Seen]) -> dict[int, int]:
        """Have all ranks print their stacks; the ranks that will, with how long their logs are."""
        asked = {}
        for rank, seen in events.items():
            size = stacks.size_of(self.run.log(rank))
            if not seen.ended and seen.pid is not None \
                    and stacks.send(seen.pid, procs.start_ticks(seen.pid)):
                asked[rank] = size
        return asked

    def _complete(self) -> bool:
        return all(self._stack(rank) for rank in self._asked or ())

    def _stack(self, rank: int | None) -> str | None:
        at = (self._asked or {}).get(rank) if rank is not None else None
        return None if at is None or rank is None else stacks.since(self.run.log(rank), at)
