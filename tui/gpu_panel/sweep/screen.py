"""The screen of one sweep: its table, and above it its value against each key that was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Resize, ScreenResume

from gpu_engine.common.clean import clean
from gpu_engine.sweep.table import DONE, By, One, short
from gpu_panel.charts.dots import Dot, DotsView
from gpu_panel.common import units
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.sweep.pane import SweepPane
from gpu_panel.sweep.store import SweepStore

LOWEST, NARROWEST = 8, 38
"""Rows and columns of a picture from which on it says something, its frame included."""


class Pictures(Horizontal):
    """A chart of dots for each of the keys with the most values, as many as there is room for."""

    def show(self, keys: Sequence[str], members: Sequence[One], by: By) -> None:
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
    title = f"{short([key])[0]} against best {clean(by.name, 30)}"
    if best is not None:
        title += f" ─ {units.loss(best[1])} at {clean(best[0].values.get(key, ''), 16)}"
    return title, [Dot(clean(one.values.get(key, ""), 12), value, one is (best and best[0]),
                       one.kind != DONE) for one, value in known]


EVERY = 2.0
"""Seconds between two polls while runs of it may still change."""


class SweepScreen(PaneScreen):
    """The table, and above it its pictures where it leaves room for them."""

    SCOPE = "sweep-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (SweepPane,)
    AUTO_FOCUS = f"#{SweepPane.NAME}"
    DEFAULT_CSS = """
    SweepScreen {
        SweepPane { height: 1fr; min-height: 5; }
        DotsView { width: 1fr; }
    }
    """

    def __init__(self, sweep: str, store: SweepStore | None = None) -> None:
        """`sweep`: its id. `store`: what has been read of it already."""
        super().__init__()
        self.table = SweepPane(store or SweepStore(sweep))
        self.pictures = Pictures()

    def compose(self) -> ComposeResult:
        yield self.pictures
        yield self.table
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._poll)
        self.table.poll_now()

    def on_screen_resume(self, event: ScreenResume) -> None:
        """A run may have been resumed on its own screen."""
        if self.table.members is not None:
            self.table.poll_now()

    def _poll(self) -> None:
        if self.is_active:
            self.table.poll()

    def on_sweep_pane_arranged(self) -> None:
        """Draw the pictures anew, in the rows that the table does not need or can spare."""
        table, high = self.table, self.size.height - 1
        group, members = table.group, table.members or ()
        room = max(high - table.rows_wanted, high // 3)
        self.pictures.display = room >= LOWEST and group is not None and bool(
            varied(group.keys, members))
        self.pictures.styles.height = room
        if group is not None and self.pictures.display:
            self.call_after_refresh(self.pictures.show, group.keys, members, table.by)

    def on_resize(self, event: Resize) -> None:
        self.on_sweep_pane_arranged()
