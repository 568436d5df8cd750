"""The line above a chart that says whose curve has which stroke. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Entry = tuple[str, str, int]
"""A sample of the stroke, a label, and the number of the stroke's style."""
GAP = 2


def legend(entries: Sequence[Entry], width: int) -> list[tuple[int, str, int]]:
    """(x, text, style) of the texts of one line that is `width` cells wide. Entries that have no
    room are counted at the end: "… 5 more"."""
    shown = len(entries)
    while shown and _wide(entries[:shown]) + _rest(len(entries) - shown) > width:
        shown -= 1
    if not shown:
        return []
    found: list[tuple[int, str, int]] = []
    x = 0
    for sample, label, style in entries[:shown]:
        found += [(x, sample, style), (x + len(sample) + 1, label, 0)]
        x += len(sample) + 1 + len(label) + GAP
    if shown < len(entries):
        found.append((x, f"… {len(entries) - shown} more", 0))
    return found


def _wide(entries: Sequence[Entry]) -> int:
    return sum(len(sample) + 1 + len(label) + GAP for sample, label, _ in entries) - GAP


def _rest(many: int) -> int:
    return GAP + len(f"… {many} more") if many else 0
