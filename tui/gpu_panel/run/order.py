"""In which order the ranks stand in their table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf, isfinite

from gpu_engine.events.rank_view import RankView

BY_RANK, SLOWEST, LOSS, MEMORY = "rank", "slowest", "highest loss", "most memory"
ORDERS = (BY_RANK, SLOWEST, LOSS, MEMORY)
HOLDS = 3.0
"""Seconds for which an order holds, as rows that change places twice a second can't be read."""


def _slowness(view: RankView) -> tuple[float, float]:
    rate = view.samples_per_s if view.samples_per_s is not None else view.steps_per_s
    return (inf if view.step is None else view.step, inf if rate is None else rate)


def _loss(view: RankView) -> tuple[float, float]:
    if view.loss is None:
        return 1.0, 0.0
    return 0.0, -view.loss if isfinite(view.loss) else -inf


def _memory(view: RankView) -> tuple[float, float]:
    def most(values: Iterable[int | None]) -> float:
        return float(max((v for v in values if v is not None), default=0))

    return -most(view.gpu_peak) or -most(view.gpu_allocated), -most([view.rss])


_KEYS: Mapping[str, Callable[[RankView], tuple[float, float]]] = {
    BY_RANK: lambda view: (0.0, 0.0), SLOWEST: _slowness, LOSS: _loss, MEMORY: _memory}


def is_failing(view: RankView, late: Collection[int]) -> bool:
    """Whether a rank has failed, or is among those that are late."""
    return view.error is not None or view.outcome == "failed" or view.rank in late


class RankOrder:
    """The order that was chosen. Ranks that fail come first in any of them."""

    def __init__(self) -> None:
        self.by = BY_RANK
        self._made: tuple[object, float] = (None, -inf)
        self._ranks: list[int] = []

    def of(self, ranks: Mapping[int, RankView], late: Collection[int], now: float) -> list[int]:
        """The ranks in this order. `late`: those that are silent or hold up the others; `now`:
        unix seconds."""
        failing = frozenset(r for r, view in ranks.items() if is_failing(view, late))
        state = (self.by, tuple(ranks), failing)
        if state != self._made[0] or not 0 <= now - self._made[1] < HOLDS:
            self._made = state, now
            key = _KEYS[self.by]
            self._ranks = sorted(ranks, key=lambda r: (r not in failing, key(ranks[r]), r))
        return self._ranks
