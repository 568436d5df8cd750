"""Which device computes, or which link carries, much less than the others of its kind.

Pure rules over what `gpu-engine check` has measured. A figure is compared with the median of its
kind, and nothing is said where there is nothing to compare it with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

Line = Mapping[str, Any]
"""A line of the check: see worker/check.py."""

SLOW_DEVICE = 0.85
"""Below this part of the median a device is named. Cards of one kind differ by a few percent
(arxiv.org/abs/2208.11035 finds up to 8 % between well-cooled ones): more is heat, a power limit, or
somebody else's work."""
SLOW_LINK = 0.6
"""Below this part of the median a link is named: half the lanes, or one generation less, is half
the speed."""


class Outlier(NamedTuple):
    """A figure far below those of its kind."""

    what: str
    share: float
    """Its part of the median of its kind."""


def slow_devices(products: Sequence[Line]) -> list[Outlier]:
    """The GPUs that multiply matrices slower than others of the same name; of two that differ, the
    slower. CPU slots share their cores with whatever runs, so they are not judged."""
    return below(SLOW_DEVICE, [(p["model"], f"{p['device']} on {p['host']}", p["flops_per_s"])
                               for p in products if p["model"] != "cpu"])


def slow_links(pairs: Sequence[Line]) -> list[Outlier]:
    """The pairs of ranks whose link is slower than others of its kind: between GPUs of a machine,
    or between machines. CPU slots of one machine share its memory with whatever runs."""
    return below(SLOW_LINK, [
        ("within" if _one_machine(p) else "between", f"ranks {p['ranks'][0]} and {p['ranks'][1]}",
         p["bytes_per_s"]) for p in pairs if not (_one_machine(p) and p["device_type"] == "cpu")])


def _one_machine(pair: Line) -> bool:
    first, second = pair["hosts"]
    return first == second


def below(part: float, found: Sequence[tuple[str, str, float]]) -> list[Outlier]:
    """The figures of (kind, what, figure) that are below `part` of the usual one of their kind."""
    out = []
    for kind in dict.fromkeys(k for k, _, _ in found):
        of_kind = [(what, figure) for k, what, figure in found if k == kind]
        # The median of two is between them: the faster of two is what the other could be.
        usual = median(f for _, f in of_kind) if len(of_kind) > 2 else max(f for _, f in of_kind)
        out += [Outlier(what, f / usual) for what, f in of_kind if f < part * usual]
    return out

