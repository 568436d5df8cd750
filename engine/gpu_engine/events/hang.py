"""Ranks that stand still: which, in which phase, for how long. Pure.

The supervisor, the panel and `show` use it. A rank moves as long as its step or its phase changes.
When one hangs, the others soon wait for it inside a collective and stand still too. So the rank to
look at is the one furthest behind: a silent rank comes before all others, then the lowest step
counts, then the phase that comes first within a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.frozen import frozen

if TYPE_CHECKING:
    from gpu_engine.events.rank_view import RankView

SILENT = 5.0
"""Seconds without an event after which a rank is called silent. A heartbeat comes once a second."""
_ORDER = {name: i for i, name in enumerate(
    ("init", "data", "running", "forward", "backward", "optimizer", "eval", "checkpoint"))}


@frozen(slots=True)
class Standstill:
    """Where a rank stands still, and for how long."""

    rank: int
    step: int | None
    phase: str | None
    still: float
    """Seconds since its step or phase last changed."""
    silent: float
    """Seconds since its last event."""

    @property
    def is_silent(self) -> bool:
        """Whether its heartbeat has stopped."""
        return self.silent > SILENT

    def __str__(self) -> str:
        # A script's phase is "running" in everything but backward and optimizer: it says nothing.
        where = f" in {self.phase}" if self.phase not in (None, "running") else ""
        at = f" after step {self.step:,}" if self.step is not None else ""
        text = f"rank {self.rank} has stalled{where} for {units.clock(self.still)}{at}"
        if self.is_silent:
            text += f", without a sign of life for {units.clock(self.silent)}"
        return text


def furthest_behind(ranks: Sequence[Standstill]) -> Standstill:
    """The rank that is furthest behind. `ranks` must not be empty."""
    return min(ranks, key=lambda s: (not s.is_silent, -1 if s.step is None else s.step,
                                     _ORDER.get(s.phase or "", 0), -s.still))


def describe(ranks: Sequence[Standstill]) -> str:
    """One line that says which rank is furthest behind, and where the others stand."""
    first = furthest_behind(ranks)
    others = [s for s in ranks if s is not first]
    if not others:
        return str(first)
    phases: dict[str, list[int]] = {}
    for standing in others:
        phases.setdefault(standing.phase or "?", []).append(standing.rank)
    where = ", ".join(f"{_ranks(ranks)} in {phase}" for phase, ranks in phases.items())
    return f"{first}; {where}"


def stalled(views: Iterable[RankView], now: float, *, at_least: float = 30.0,
            unheard: Collection[int] = ()) -> list[Standstill]:
    """The ranks that stand still for unusually long, the one furthest behind first.

    Unusual is longer than `at_least` seconds and than five of the rank's own steps. Ranks before
    their first step are left out: they may prepare data and compile kernels for any time. So are
    those `unheard` of, see `State.unheard`, and all while one waits in its debugger. `now` is in
    Unix seconds.
    """
    found, views = [], list(views)
    person = debugged(views)
    for view in views:
        if view.outcome is not None or view.beat is None or not view.step_times \
                or view.rank in unheard:
            continue
        since = max(view.phase_since or 0.0, view.progressed or 0.0, view.step_times[-1][0], person)
        standing = Standstill(view.rank, view.step, view.phase, max(now - since, 0.0),
                              max(now - view.beat, 0.0))
        longest = max(standing.still, standing.silent)
        # The pace is worked out only for the few that may stand still.
        if longest > at_least and longest > 5 / (view.steps_per_s or inf):
            found.append(standing)
    if not found:
        return []
    first = furthest_behind(found)
    return [first, *(s for s in found if s is not first)]


def debugged(views: Iterable[RankView]) -> float:
    """Until when a person has held up ranks in the debugger of one, Unix seconds; infinite while
    it waits, 0 if there was none."""
    return max((inf if v.debugged else v.debugger.t for v in views if v.debugger is not None),
               default=0.0)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} others"
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks))
