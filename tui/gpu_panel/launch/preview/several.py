"""The previews of several runs: of marked ones, and of a sweep. They are made of the panes of the
screens that enter opens, with less room."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.sweep.table import One, short, summary
from gpu_panel.charts.dots import DotsView
from gpu_panel.compare.panes import CurvesPane, DifferencesPane, FiguresPane
from gpu_panel.compare.store import Compared, CompareStore
from gpu_panel.launch.preview.page import Page
from gpu_panel.launch.runs.line import Pointed
from gpu_panel.sweep.pane import SweepPane
from gpu_panel.sweep.screen import EVERY, against, varied
from gpu_panel.sweep.store import SweepStore


class SweepCurves(CurvesPane):
    """The curves, which the legend calls by their values."""

    labels: dict[str, str] = {}  # noqa: RUF012  replaced, never changed

    def label(self, one: Compared) -> str:
        return self.labels.get(one.id) or super().label(one)


class SweepPage(Page):
    """Curves and dots beside each other, the table below."""

    DEFAULT_CSS = """
    SweepPage {
        #sweep-pictures { height: 1fr; min-height: 5; }
        CurvesPane { width: 1fr; height: 1fr; min-height: 4; }
        DotsView { width: 1fr; height: 1fr; margin-left: 1; }
    }
    """
    sweep: SweepStore | None = None
    store: CompareStore | None

    def compose(self) -> ComposeResult:
        with Horizontal(id="sweep-pictures"):
            yield SweepCurves(id="sweep-curves")
            yield DotsView(id="sweep-dots", classes="pane")
        yield SweepPane(id="sweep-table")

    async def begin(self, at: Pointed) -> None:
        assert at.sweep is not None
        # The list puts those that run first; here each keeps its colour.
        self.store = self.stores.compared([line.run for line in sorted(
            at.lines, key=lambda line: line.sweep.index if line.sweep else 0)])
        sweep = self.stores.sweep(at.sweep)
        if sweep is not self.sweep:
            self.sweep = sweep
            self.query_one(SweepPane).anew(sweep)

    async def follow(self) -> None:
        table = self.query_one(SweepPane)
        table.poll_now()
        looking = self.set_interval(EVERY, table.poll)
        try:
            await super().follow()
        finally:
            looking.stop()

    def _changes(self) -> bool:
        return super()._changes() or self.query_one(SweepPane).members is None

    def paint(self) -> None:
        if self.store is None or not self.size:
            return
        table = self.query_one(SweepPane)
        table.styles.height = min(table.rows_wanted, self.size.height // 2)
        last = self.sweep.last if self.sweep is not None else None
        curves = self.query_one(SweepCurves)
        if last is not None:
            curves.labels = {one.id: labelled(one) for one in last.members}
        curves.paint(self.store, None)
        if last is None:
            return
        said = summary(last.group.of, last.members)
        self.entitle(Content(f"sweep {last.group.id} {last.group.name} ─ {said}"),
                     "enter whole table · → its runs · s stop all")
        for key in varied(last.group.keys, last.members)[:1]:
            self.query_one(DotsView).show(*against(key, last.members, last.by))


def labelled(one: One) -> str:
    """"lr 1e-4": short, as a legend has one line."""
    return clean(" ".join(f"{key} {value}" for key, value in zip(
        short(list(one.values)), one.values.values(), strict=True)), 40)


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
    store: CompareStore | None

    def compose(self) -> ComposeResult:
        yield CurvesPane(id="marked-curves")
        yield FiguresPane(id="marked-figures")
        yield DifferencesPane(id="marked-differences")

    async def begin(self, at: Pointed) -> None:
        self.store = self.stores.compared([line.run for line in at.lines])

    def paint(self) -> None:
        if self.store is None or not self.size:
            return
        self.entitle(Content(f"{len(self.store.runs)} marked runs"), "c whole screen · esc unmark")
        self.query_one(DifferencesPane).display = self.size.height >= _DIFFERENCES_FROM
        for pane in (self.query_one(CurvesPane), self.query_one(FiguresPane),
                     self.query_one(DifferencesPane)):
            if pane.display:
                pane.paint(self.store, None)
