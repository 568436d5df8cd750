"""gpu-panel beside each other program: who is ahead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .measures import BESIDE
from .results import Figure, Group
from .spread import Spread, ratios, spread

ENOUGH = 5
"""Rounds from which on a group is more than a first look."""


@dataclass(frozen=True)
class Pair:
    """One of ours beside one of the others, in the same measure, case and rounds."""

    group: str
    measure: str
    case: str
    ours: str
    peer: str
    our: Spread
    their: Spread
    ratio: Spread
    """How many times the other's ours is; below 1 we are ahead."""


def pairs(groups: Mapping[str, Group]) -> list[Pair]:
    """Every pair there is."""
    found = []
    for name in BESIDE:
        for figure in groups[name].figures if name in groups else ():
            if not figure.program.startswith("gpu-panel"):
                continue
            for other in _others(groups[name].figures, figure):
                found.append(Pair(
                    name, figure.measure, figure.case, figure.program, other.program,
                    spread(figure.values), spread(other.values),
                    ratios(figure.values, other.values)))
    return found


def _others(figures: Iterable[Figure], ours: Figure) -> list[Figure]:
    return [f for f in figures if not f.program.startswith("gpu-panel")
            and (f.measure, f.case) == (ours.measure, ours.case)]


def losses(found: Iterable[Pair]) -> list[Pair]:
    """Pairs in which the other was ahead in every round, the greatest loss first."""
    return sorted((p for p in found if p.ratio.low > 1), key=lambda p: -p.ratio.median)
