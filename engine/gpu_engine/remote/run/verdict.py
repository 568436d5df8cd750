"""How an attempt on several hosts ended, by how it ended on each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpu_engine.events import schema
from gpu_engine.runs.state import Cause, State
from gpu_engine.supervisor.attempt import ALONE
from gpu_engine.supervisor.cause import Failure

_DOUBT = 5.0
"""Seconds by which a clock may go wrong during an attempt without having been set."""
Outcome = Literal["completed", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class End:
    """How one host's part ended."""

    state: State | None
    """What it told last; None: nothing."""
    refused: str | None = None
    """Why it would not do it."""
    lost: str | None = None
    """Why nothing is known of its end: it can't be reached."""
    failed_at: float | None = None
    """When its first failure was, unix seconds by this machine's clock."""

    @property
    def cause(self) -> Cause | None:
        """Why it failed; None where it did not."""
        if self.refused is not None:
            return Cause(self.refused)
        if self.state is not None and self.state.state in ("failed", "lost", "unreadable"):
            return self.state.cause or Cause(self.state.reason or self.state.state)
        if self.lost is not None:
            return Cause(f"it can't be reached: {self.lost}")
        return None

    @property
    def in_wake(self) -> bool:
        """Whether it looks like another host's failure seen from there."""
        cause = self.cause
        if cause is None or cause.rank is None:
            return False
        error = schema.Error(type=cause.type or "", message=cause.message,
                            traceback=cause.traceback, phase=None, step=None)
        return Failure(cause.rank, 1, 0.0, error).in_wake


def by_our_clock(when: float | None, skew: float, begun: float, now: float) -> float | None:
    """A time that a host tells, by this machine's clock, unix seconds. `skew`: seconds by which its
    clock was ahead at the launch. None where it is not within the attempt, which has `begun` here:
    a clock was set since, so it says nothing of who was first."""
    at = when - skew if when is not None else None
    return at if at is not None and begun - _DOUBT <= at <= now + _DOUBT else None


def judge(ends: Mapping[str, End], *, stop_asked: bool
          ) -> tuple[Outcome, str | None, Cause | None]:
    """The outcome, one line for people, and the cause where it failed: the earliest failure that is
    not the echo of another host's."""
    failed = {name: end for name, end in ends.items() if end.cause is not None}
    if stop_asked:
        # What was asked to end may well end badly; only what failed by itself before counts.
        failed = {name: end for name, end in failed.items()
                  if end.state is not None and end.state.state == "failed" and not end.in_wake}
    if failed:
        own = {n: e for n, e in failed.items() if not e.in_wake} or failed
        # Who said nothing of when, is behind those who did.
        name = min(own, key=lambda n: (own[n].failed_at is None, own[n].failed_at or 0.0))
        cause = own[name].cause
        assert cause is not None
        cause = replace(cause, host=name)
        return "failed", cause.line, cause
    states = [e.state.state for e in ends.values() if e.state is not None]
    told = [e.state.reason for e in ends.values() if e.state is not None and e.state.reason]
    done = {*states} == {"completed"} and len(states) == len(ends)
    if (stop_asked and not done) or "stopped" in states:
        # Ranks on a host that heard of the stop last have ended with the others, not by themselves.
        reasons = [why for why in told if not (stop_asked and why == ALONE)]
        return "stopped", reasons[0] if reasons else None, None
    return "completed", told[0] if told else None, None
