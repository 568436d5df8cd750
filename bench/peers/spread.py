"""Medians and spreads of rounds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """What several rounds of one measurement gave."""

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """The median, least and greatest of `values`, which must not be empty."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times `theirs` ours is, round by round: only what ran side by side is compared, as
    a machine drifts. Raises ValueError if the rounds are not the same in number."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
