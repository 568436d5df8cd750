"""How the panes of a wide launch screen share its height. Pure."""

from __future__ import annotations

from dataclasses import dataclass

USUAL = 20
"""Rows of devices and form where there is room for them, so that a device more or a field less
moves nothing."""
LEAST = 9
"""Rows that devices and form have on the lowest screen."""
FEW_RUNS = 6
"""Rows that are kept for the runs."""
TALL = 44
"""Rows of a screen from which on a long form leaves the runs only 4: it is long only while "more"
is open."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows with which each pane would show all it has, frames included."""

    devices: int
    form: int
    plan: int
    runs: int


def top(height: int, wanted: Wanted) -> int:
    """Rows for devices and form on a screen of `height` rows; the runs have the rest below."""
    left = height - 2 - wanted.plan  # without the first line and the keys
    few = max(4, min(wanted.runs, FEW_RUNS))
    return max(LEAST, min(USUAL, left - few - 2), min(wanted.devices, left - few),
               min(wanted.form, left - (4 if height >= TALL else few)))
