"""What a sweep has found, as pictures: its value against each key that was varied."""

from __future__ import annotations

from collections.abc import Sequence

from textual.containers import Horizontal

from gpu_engine.common.clean import clean
from gpu_engine.sweep import words
from gpu_engine.sweep.table import DONE, By, One
from gpu_panel.charts.dots import Dot, DotsView
from gpu_panel.common import units

LOWEST, NARROWEST = 8, 38
"""Rows and columns of a picture from which on it says something, its frame included."""


class Pictures(Horizontal):
    """A chart of dots for each of the keys with the most values, as many as there is room for."""

    def show(self, keys: Sequence[str], members: Sequence[One], by: By) -> None:
        """Show these members. Call it again when the size has changed."""
        known = self.query_children(DotsView)
        shown = varied(keys, members)[:max(self.size.width // NARROWEST, 1)]
        for view in list(known)[len(shown):]:
            view.remove()
        for at, key in enumerate(shown):
            if at >= len(known):
                self.mount(DotsView(classes="pane"))
            self.query_children(DotsView)[at].show(*against(key, members, by))


def varied(keys: Sequence[str], members: Sequence[One]) -> list[str]:
    """Those of the keys that have several values, the ones with the most first."""
    counts = {key: len({one.values.get(key) for one in members}) for key in keys}
    return sorted((key for key in keys if counts[key] > 1), key=lambda key: -counts[key])


def against(key: str, members: Sequence[One], by: By) -> tuple[str, list[Dot]]:
    """(title, a dot for each member with a value). The best is that of a member that is done, if
    there is one, as in the table."""
    known = [(one, value) for one in members if (value := one.best(by)) is not None
             and value - value == 0]
    done = [pair for pair in known if pair[0].kind == DONE] or known
    best = (max if by.largest else min)(done, key=lambda pair: pair[1], default=None)
    title = f"{words.short([key])[0]} against best {clean(by.name, 30)}"
    if best is not None:
        title += f" ─ {units.loss(best[1])} at {clean(best[0].values.get(key, ''), 16)}"
    return title, [Dot(clean(one.values.get(key, ""), 12), value, one is (best and best[0]),
                       one.kind != DONE) for one, value in known]
