"""Who stands still, in which phase, for how long: for the supervisor, the panel and `show`. Pure.

A rank moves while its step or its phase changes. When one hangs, the others soon wait for it
inside a collective and stand still too, so the one to look at is the one that got least far: a
rank that gives no sign of life before any that does, then the lowest step, then the phase that
comes first within a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common import units

if TYPE_CHECKING:
    from gpu_engine.events.rank_view import RankView

SILENT = 5.0
"""Seconds without a heartbeat, which comes once a second, that mean something."""
_ORDER = {name: i for i, name in enumerate(
    ("init", "data", "running", "forward", "backward", "optimizer", "eval", "checkpoint"))}


@dataclass(frozen=True, slots=True)
class Standing:
    """How one rank stands."""

    rank: int
    step: int | None
    phase: str | None
    still: float
    """Seconds since its step or phase last changed."""
    silent: float
    """Seconds since it was last heard of."""

    @property
    def unheard(self) -> bool:
        """Whether it gives no sign of life."""
        return self.silent > SILENT

    def __str__(self) -> str:
        where = f" in {self.phase}" if self.phase else ""
        at = f" after step {self.step:,}" if self.step is not None else ""
        text = f"rank {self.rank} has stood{where} for {units.clock(self.still)}{at}"
        if self.unheard:
            text += f", without a sign of life for {units.clock(self.silent)}"
        return text


def behind(ranks: Sequence[Standing]) -> Standing:
    """The rank that got least far. `ranks` is not empty."""
    return min(ranks, key=lambda s: (not s.unheard, -1 if s.step is None else s.step,
                                     _ORDER.get(s.phase or "", 0), -s.still))


def words(ranks: Sequence[Standing]) -> str:
    """One line: who is behind, and where the others stand."""
    first = behind(ranks)
    others = [s for s in ranks if s is not first]
    if not others:
        return str(first)
    phases: dict[str, list[int]] = {}
    for standing in others:
        phases.setdefault(standing.phase or "?", []).append(standing.rank)
    where = ", ".join(f"{_ranks(ranks)} in {phase}" for phase, ranks in phases.items())
    return f"{first}; {where}"


def stalled(views: Iterable[RankView], now: float, *, at_least: float = 30.0) -> list[Standing]:
    """The ranks that have stood still for longer than is usual, the one furthest behind first:
    for `at_least` seconds and five of the rank's own steps. Only ranks that have stepped: until
    then data is prepared and kernels are compiled. `now`: unix seconds."""
    found = []
    for view in views:
        if view.outcome is not None or view.beat is None or not view.step_times:
            continue
        pace = view.steps_per_s
        since = max(view.phase_since or 0.0, view.progressed or 0.0, view.step_times[-1][0])
        standing = Standing(view.rank, view.step, view.phase, max(now - since, 0.0),
                    max(now - view.beat, 0.0))
        if max(standing.still, standing.silent) > max(at_least, 5 / pace if pace else 0.0):
            found.append(standing)
    if not found:
        return []
    first = behind(found)
    return [first, *(s for s in found if s is not first)]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} others"
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks))
