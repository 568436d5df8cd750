"""The screen of one sweep: its table."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.events import ScreenResume

from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.sweep.pane import SweepPane
from gpu_panel.sweep.store import SweepStore

EVERY = 2.0
"""Seconds between two polls while runs of it may still change."""


class SweepScreen(PaneScreen):
    SCOPE = "sweep-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (SweepPane,)
    AUTO_FOCUS = f"#{SweepPane.NAME}"
    DEFAULT_CSS = "SweepScreen { SweepPane { height: 1fr; } }"

    def __init__(self, sweep: str, store: SweepStore | None = None) -> None:
        """`sweep`: its id. `store`: what has been read of it already."""
        super().__init__()
        self.table = SweepPane(store or SweepStore(sweep))

    def compose(self) -> ComposeResult:
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
