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


READING = 26
"""Rows that a person who looks at runs has for them and for the preview, where devices and form
can spare them."""
BELOW, BELOW_FROM = 9, 18
"""The least rows of the preview below the list, in a narrow terminal; and the rows of both from
which on there is room for it."""
BESIDE = 6
"""The least rows of the preview beside the list."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows with which each pane would show all it has, frames included."""

    devices: int
    form: int
    """0 while it is folded."""
    plan: int
    runs: int


def top(height: int, wanted: Wanted, *, reading: bool = False) -> int:
    """Rows for devices and form on a screen of `height` rows; the runs have the rest below.
    `reading`: whether the person is among the runs."""
    left = height - 2 - wanted.plan  # without the first line and the keys
    if not wanted.form:
        most = max(left - READING, left * 2 // 5) if reading else left - READING // 2
        return min(wanted.devices, max(LEAST, most))
    few = max(4, min(wanted.runs, FEW_RUNS))
    usual = max(LEAST, min(USUAL, left - few - 2), min(wanted.devices, left - few),
                min(wanted.form, left - (4 if height >= TALL else few)))
    return max(LEAST, min(usual, left - READING)) if reading else usual


def below(height: int, runs: int) -> int:
    """Rows of the preview below the list of runs on a narrow screen of `height` rows, 0 if there is
    no room. `runs`: rows with which the list would show all it has."""
    left = height - 3  # without the first line, the tabs and the keys
    return max(BELOW, min(left - runs, left * 2 // 3)) if left >= BELOW_FROM else 0
