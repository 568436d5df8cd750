"""The preview of several marked runs: the panes of the compare screen with less room."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content

from gpu_panel.compare.curves import CurvesPane
from gpu_panel.compare.differences import DifferencesPane
from gpu_panel.compare.figures import FiguresPane
from gpu_panel.compare.store import CompareStore
from gpu_panel.launch.preview.page import Page
from gpu_panel.launch.runs.pointed import Pointed

_DIFFERENCES_FROM = 16
"""Rows of a page from which on there is room for the differences too."""


class MarkedPage(Page):
    """Curves over each other, figures, and what differs if there is room."""

    DEFAULT_CSS = """
    MarkedPage {
        CurvesPane { min-height: 4; }
        FiguresPane { min-height: 2; }
        DifferencesPane { min-height: 2; height: auto; max-height: 30%; }
    }
    """
    store: CompareStore | None = None

    def compose(self) -> ComposeResult:
        yield CurvesPane(id="marked-curves")
        yield FiguresPane(id="marked-figures")
        yield DifferencesPane(id="marked-differences")

    async def begin(self, at: Pointed) -> None:
        self.store = self.stores.compared([line.run for line in at.lines])

    async def follow(self) -> None:
        assert self.store is not None
        await self._follow(self.store)

    def _changes(self) -> bool:
        return self.store is None or self.store.live

    def paint(self) -> None:
        if self.store is None or not self.size:
            return
        self.entitle(Content(f"{len(self.store.runs)} marked runs"), "c whole screen · esc unmark")
        self.query_one(DifferencesPane).display = self.size.height >= _DIFFERENCES_FROM
        for pane in (self.query_one(CurvesPane), self.query_one(FiguresPane),
                     self.query_one(DifferencesPane)):
            if pane.display:
                pane.paint(self.store, None)

    def on_resize(self) -> None:
        self.paint()


