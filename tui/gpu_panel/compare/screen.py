"""The compare screen: curves over each other, figures and differences of several runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult

from gpu_engine.runs import compare
from gpu_engine.runs.folder import Run
from gpu_panel.common.clipboard import copy
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.pane_bar import PaneBar
from gpu_panel.common.panes import Pane, StoreScreen
from gpu_panel.compare.panes import ComparePane, CurvesPane, DifferencesPane, FiguresPane
from gpu_panel.compare.store import CompareStore

_EVERY = 0.5
"""Seconds between two paints."""


class CompareScreen(StoreScreen):
    CSS_PATH = Path(__file__).with_name("screen.tcss")
    SCOPE = "compare"
    PANES: ClassVar[tuple[type[Pane], ...]] = (CurvesPane, FiguresPane, DifferencesPane)

    def __init__(self, runs: Sequence[Run], store: CompareStore | None = None) -> None:
        """`runs`: at most `store.MOST` are compared. `store`: what was read of them already."""
        super().__init__()
        self.store = store or CompareStore(runs)
        self._chosen: int | None = None
        self._painted: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        yield PaneBar(self.tabs(), id="tabs")
        for pane in self.PANES:
            yield pane(id=pane.NAME)
        yield KeyBar()

    def on_mount(self) -> None:
        if not self.query(PaneBar):  # the panel closes as it opens this: nothing was mounted
            return
        self._arrange()
        self.run_worker(self.store.follow(), group="store", exclusive=True, exit_on_error=False)
        self.run_worker(self._keep_painted(), group="paint", exclusive=True)

    async def _keep_painted(self) -> None:
        while True:
            self.paint()
            await asyncio.sleep(_EVERY)

    def paint(self) -> None:
        if not self.app.is_running or not self.is_current:
            return
        now = (self.store.version, self._chosen)
        if now != self._painted:
            self._painted = now
            for pane in self._panes():
                pane.paint(self.store, self._chosen)

    def _panes(self) -> Iterator[ComparePane]:
        for pane in self.PANES:
            yield self.query_one(f"#{pane.NAME}", ComparePane)

    def on_compare_pane_run_chosen(self, event: ComparePane.RunChosen) -> None:
        event.stop()
        if event.index != self._chosen:
            self._chosen = event.index
            self.paint()

    def _arrange(self) -> None:
        tabs = self.is_small
        self.set_class(tabs, "-tabs")
        for pane in self._panes():
            pane.set_class(tabs and self._front != pane.NAME, "-behind")
        self.query_one(PaneBar).active = self._front
        self._keep_focus(tabs)

    def action_copy(self) -> None:
        copy(self.app, "\n".join(compare.markdown(self.store.facts)))
