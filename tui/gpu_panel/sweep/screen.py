"""The screen of one sweep."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.events import Resize, ScreenResume

from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.sweep.pane import SweepPane
from gpu_panel.sweep.pictures import LOWEST, Pictures, varied
from gpu_panel.sweep.store import SweepStore

EVERY = 2.0
"""Seconds between two looks while runs of it may still change."""


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
        self.set_interval(EVERY, self._look)
        self.table.look_at_once()

    def on_screen_resume(self, event: ScreenResume) -> None:
        """A run may have been resumed on its own screen."""
        if self.table.members is not None:
            self.table.look_at_once()

    def _look(self) -> None:
        if self.is_active:
            self.table.look()

    def on_sweep_pane_arranged(self) -> None:
        """Draw the pictures anew, in the rows that the table does not need; in some of them if it
        is long."""
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
