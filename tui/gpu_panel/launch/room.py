"""How the panes of a wide launch screen share its height, and the preview's parts theirs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

USUAL = 20
"""Rows of devices and form where there is room, so that a device or field more moves nothing."""
LEAST = 9
"""Rows that devices and form have on the lowest screen."""
FEW_RUNS = 6
"""Rows that are kept for the runs."""
TALL = 44
"""Rows of a screen from which on a long form, with "more" open, leaves the runs only 4."""


READING = 26
"""Rows of runs and preview for who looks at them, where devices and form can spare them."""
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
    """Rows for devices and form of `height`. `reading`: whether the person is among the runs."""
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


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of each part of a run's preview, its line at the top included; 0: it is not shown. The
    curves, or the log if there are none, have what is left."""

    facts: int
    banner: int
    curves: int
    ranks: int
    log: int
    plan: int = 0
    """What will run, of a run that waits."""


def share(height: int, *, ranks: int, banner: int, facts: bool, curves: bool, failed: bool,
          waits: bool, lines: int) -> Parts:
    """Share `height` rows. `ranks`: the lines of all ranks; `banner`: those of the banner; `facts`:
    whether there are figures; `curves`: whether there is anything to draw; `failed`: whether the
    log says why it failed; `waits`: whether it is in the queue; `lines`: those of its log."""
    figures = 1 if facts and height >= 10 else 0
    said = min(banner, max(height // 4, 1))
    left = height - figures - said
    if waits:
        return Parts(figures, said, 0, 0, 0, left)
    table = min(ranks + 2, max(left // 4, 3)) if ranks and left >= 14 else 0
    left -= table
    if not curves:
        return Parts(figures, said, 0, table, left)
    log = 0
    if left >= 11:
        log = min(left // 2 if failed else max(left // 4, 4), lines + 1)
    elif failed and left >= 7:
        return Parts(figures, said, 0, table, left)  # why it failed says more than a small curve
    return Parts(figures, said, left - log, table, log)
