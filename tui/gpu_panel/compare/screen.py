"""The compare screen: curves over each other, figures and differences of several runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import DataTable

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.ticks import time_ticks
from gpu_engine.runs import compare
from gpu_engine.runs.folder import Run
from gpu_panel import keys
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.charts.drawing import SAMPLES
from gpu_panel.common import palette
from gpu_panel.common.clipboard import copy
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.painting import entitle
from gpu_panel.common.panes import Pane, PaneBar, StoreScreen
from gpu_panel.common.picking import pick
from gpu_panel.compare.curve import LOSS
from gpu_panel.compare.store import Compared, CompareStore

_EVERY = 0.5
"""Seconds between two paints."""


class ComparePane(Pane):
    """A pane of the compare screen, which paints what the store holds when the screen calls it."""

    @dataclass
    class RunChosen(Message):
        """The person has put the cursor on a run."""

        index: int

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        """Show what is known now. `chosen`: the index of the run under the cursor."""
        raise NotImplementedError


def _time_ticks(low: float, high: float, most: int) -> list[float]:
    return [1000 * v for v in time_ticks(low / 1000, high / 1000, most)]


_AXES = {
    "step": ("steps", Axes(empty="no value")),
    "time": ("time", Axes(
        x_text=lambda x: units.clock(x / 1000) if x >= 10_000 else f"{x / 1000:.1f} s",
        x_name="at", x_ticks=_time_ticks, empty="no value")),
}
"""For each of `curve.AXES` its name in the title, and how it is written."""


class CurvesPane(CurveView, ComparePane):
    """The curves of all runs over each other. Its own keys work on the whole screen."""

    NAME = TITLE = "curves"
    KEYS = keys.of("chart", "curves")
    HELP = """One line for each run, the mean of its first ranks; the run under the cursor of the
table is on top. x draws them over steps, or over the time since each run began (without the time
between its attempts). c chooses another value: evaluations, what a script logs, learning rate,
speed, gradient norm."""
    DEFAULT_CSS = "CurvesPane { height: 1fr; min-height: 8; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Axes(empty="reading …"), id=id)
        self.axis = "step"
        self._last: tuple[CompareStore, int | None] | None = None

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        self._last = store, chosen
        over, axes = _AXES[self.axis]
        self.axes = replace(axes, may_be_log=store.name == LOSS,
                            **{} if store.caught_up else {"empty": "reading …"})
        self.show([Curve(i, self.label(one), one.curve.over(self.axis))
                   for i, one in enumerate(store.runs)], None, chosen)
        reading = "" if store.caught_up else f", reading {store.read_share:.0%}"
        self.entitle(f"{store.name} over {over}{reading}")

    def label(self, one: Compared) -> str:
        return clean(f"{one.id} {one.facts.name}")

    def action_axis(self) -> None:
        every = list(_AXES)
        self.axis = every[(every.index(self.axis) + 1) % len(every)]
        self._again()

    def _again(self) -> None:
        self.action_whole()  # what was zoomed in means nothing on another axis
        if self._last is not None:
            self.paint(*self._last)

    def action_value(self) -> None:
        if self._last is not None:
            store = self._last[0]
            pick(self.app, "What the chart shows", [
                (name, units.counted(many, "run"), partial(self._choose, store, name))
                for name, many in store.names.items()])

    def _choose(self, store: CompareStore, name: str) -> None:
        self.log_scale = None
        store.choose(name)
        self._again()


class CompareTable(DataTable[Text], ComparePane):  # pyright: ignore[reportIncompatibleMethodOverride]
    KEYS = keys.of("compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    DEFAULT_CSS = """
    CompareTable { height: auto; min-height: 4; max-height: 30%; background: transparent; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row")
        self._shown: object = None

    def put(self, head: Sequence[Text], rows: Sequence[Sequence[Text]], fixed: int) -> None:
        """Show these rows. `fixed`: how many columns stay where the others are scrolled."""
        if (head, rows) != self._shown:
            self._shown = head, rows
            at = self.cursor_row
            self.clear(columns=True)
            self.fixed_columns = fixed
            for at_column, title in enumerate(head):
                # Textual's own widths come later, and not at all where the table changes meanwhile.
                cells = [title, *(row[at_column] for row in rows if at_column < len(row))]
                self.add_column(title, width=max(1, *(cell.cell_len for cell in cells)))
            self.add_rows(rows)
            self.move_cursor(row=at)

    def stroke(self, index: int) -> Text:
        """A piece of the line of the run at `index`."""
        sample = SAMPLES[palette.dash_of(self.app, index) % len(SAMPLES)]
        return Text(sample, palette.strokes(self.app)[index % palette.HUES])


class FiguresPane(CompareTable):
    """One row for each run; the one under the cursor is drawn on top in the chart."""

    NAME = "figures"
    TITLE = "runs"
    KEYS = keys.of("compare-runs", "compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """How each run ended, or how far it is: its last loss (the mean of the ranks), its last
evaluation, the time of its attempts, its speed and the most memory that it took."""

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        self.runs, facts = [one.run for one in store.runs], store.facts
        columns = compare.figure_rows(facts)
        self.put([Text(""), Text("run"), Text("name"),
                  *(Text(column.name, justify="right") for column in columns)],
                 [[self.stroke(i), Text(one.id), Text(one.name), *(
                     Text(compare.cell(column.values[i]), justify="right") for column in columns)]
                  for i, one in enumerate(facts)], 2)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self.post_message(self.RunChosen(event.cursor_row))

    def action_open(self) -> None:
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(self.runs[self.cursor_row]))


class DifferencesPane(CompareTable):
    """One row for each setting that differs, and a column for each run."""

    NAME = "differences"
    TITLE = "differences"
    HELP = """The settings in which the runs differ, and after them the commit, versions, devices
and machine, as far as they differ too. Everything that is not listed is the same."""

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        if any(one.state is None for one in store.runs):
            self.put([Text("Reading …")], [], 0)
            return
        facts = store.facts
        readable = [i for i, one in enumerate(facts) if one.settings]
        settings = compare.setting_rows([facts[i] for i in readable])
        others = compare.environment_rows(facts)
        rows = []
        for found, whose in ((settings, readable), (others, range(len(facts)))):
            for row in found:
                values = dict(zip(whose, row.values, strict=True))
                rows.append([Text(row.name, "bold"), *(Text(compare.cell(values.get(i)))
                                                       for i in range(len(facts)))])
        rows += [[Text("No setting differs.")]] if not settings else []
        self.put([Text(""), *(Text.assemble(self.stroke(i), " ", one.id)
                              for i, one in enumerate(facts))], rows, 1)
        problems = [f"{one.id}: its settings can't be read: {one.problem}"
                    for one in store.runs if one.problem is not None]
        entitle(self, f"differences ─ {len(settings)} in settings, {len(others)} in the "
                "environment", clean(" · ".join(problems)))


# --- the screen -----------------------------------------------------------------------------------

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
