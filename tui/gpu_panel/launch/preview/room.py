"""How the parts of the preview share its height. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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
