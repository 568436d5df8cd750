"""The panes of the compare screen: the chart with a line for each run, how each run ended, and in
which settings, commits and versions they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import work
from textual.binding import BindingType
from textual.message import Message

from gpu_engine.common.clean import clean
from gpu_engine.common.ticks import time_ticks
from gpu_engine.runs import compare
from gpu_panel import keys
from gpu_panel.charts import palette
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.charts.drawing import SAMPLES
from gpu_panel.common import units
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Part, Row, Rows, cells, fit
from gpu_panel.common.textual_private import entitle
from gpu_panel.compare.curve import LOSS
from gpu_panel.compare.store import Compared, CompareStore


class ComparePane(Pane):
    """A pane of the compare screen, which paints what the store holds when the screen calls it."""

    @dataclass
    class RunChosen(Message):
        """The person has put the cursor on a run."""

        index: int

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        """Show what is known now. `chosen`: the index of the run under the cursor."""
        raise NotImplementedError


class CompareTable(Rows, ComparePane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """A table with more columns than may fit: the arrows move its columns."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.store: CompareStore | None = None
        self.first = 0
        """The first of the movable columns that is shown."""
        self.hidden = False

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        self.store = store
        self.repaint()

    def action_aside(self, by: int) -> None:
        if by < 0 or self.hidden:
            self.first = max(0, self.first + by)
            self.repaint()

    def stroke(self, index: int) -> Part:
        """A piece of the line of the run at `index`, and a blank."""
        sample = SAMPLES[palette.dash_of(self.app, index) % len(SAMPLES)]
        return f"{sample} ", f"line{index}"

    def _style(self, name: str) -> Style:
        index = name.removeprefix("line")
        if name not in self._styles and index != name:
            self._styles[name] = palette.strokes(self.app)[int(index) % palette.HUES]
        return super()._style(name)


def _clock(x: int) -> str:
    return units.clock(x / 1000) if x >= 10_000 else f"{x / 1000:.1f} s"


def _time_ticks(low: float, high: float, most: int) -> list[float]:
    return [1000 * v for v in time_ticks(low / 1000, high / 1000, most)]


_AXES = {
    "step": ("steps", Axes(empty="no value")),
    "time": ("time", Axes(x_text=_clock, x_name="at", x_ticks=_time_ticks, empty="no value")),
    "examples": ("examples", Axes(x_name="example", empty="no batch size is known")),
}
"""For each of `curve.AXES` its name in the title, and how it is written."""


class CurvesPane(CurveView, ComparePane):
    """The curves of all runs over each other. Its own keys work on the whole screen."""

    NAME = TITLE = "curves"
    KEYS = keys.of("chart", "curves")
    HELP = """One line for each run, the mean of its first ranks; the run under the cursor of the
table is on top. x draws them over steps, over the time since each run began (without the time
between its attempts), or over the examples seen. c chooses another value: evaluations, what a
script logs, learning rate, speed, gradient norm. ▲ and ▼ mark where values far outside are cut off;
a shows them."""
    DEFAULT_CSS = "CurvesPane { height: 1fr; min-height: 8; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Axes(empty="reading …"), id=id)
        self.robust = True
        self.axis = "step"
        self._painted: object = None
        self._last: tuple[CompareStore, int | None] | None = None

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        self._last = store, chosen
        state = (store.version, chosen, self.axis, store.name)
        if state == self._painted:
            return
        self._painted = state
        over, axes = _AXES[self.axis]
        self.axes = axes if store.caught_up else Axes(
            x_text=axes.x_text, x_name=axes.x_name, x_ticks=axes.x_ticks, empty="reading …")
        self.show([Curve(i, self.label(one), one.curve.over(self.axis))
                   for i, one in enumerate(store.runs)], None, chosen)
        reading = "" if store.caught_up else f", reading {store.read_share:.0%}"
        entitle(self, f"{store.name} over {over}{reading}")

    def label(self, one: Compared) -> str:
        return clean(f"{one.id} {one.facts.name}")

    def action_axis(self) -> None:
        every = list(_AXES)
        self.axis = every[(every.index(self.axis) + 1) % len(every)]
        self.action_whole()  # what was zoomed in means nothing on another axis
        if self._last is not None:
            self.paint(*self._last)

    @work(group="value", exclusive=True, exit_on_error=False)
    async def action_value(self) -> None:
        from gpu_panel.run.picker import CurvePicker

        if self._last is None:
            return
        store, _ = self._last

        def entries() -> list[tuple[str, str, str, str]]:
            return [(name, name, f"{many} run{'s' * (many != 1)}", "")
                    for name, many in store.names.items()]

        name = await self.app.push_screen_wait(CurvePicker(
            entries, store.name, "compare", store.left_out))
        if name is not None and name != store.name:
            self.log_scale = self.log_scale and name == LOSS
            store.choose(name)
            self.action_whole()
            self.paint(*self._last)


_NAME = 22


class FiguresPane(CompareTable):
    """One row for each run; the one under the cursor is drawn on top in the chart."""

    NAME = "figures"
    TITLE = "runs"
    KEYS = keys.of("compare-runs", "compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """How each run ended, or how far it is: its last loss (the mean of the ranks), its last
evaluation, the time of its attempts, its speed and the most memory that it took."""
    DEFAULT_CSS = "FiguresPane { height: auto; min-height: 3; }"

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.store is None:
            return None, []
        facts = self.store.facts
        columns = compare.figure_rows(facts)
        ids = max(cells(one.id) for one in facts)
        names = min(_NAME, max(cells(one.name) for one in facts))
        sizes = [max(cells(c.name), *(cells(compare.cell(v)) for v in c.values)) for c in columns]
        self.first = min(self.first, max(len(columns) - 1, 0))
        room, shown = width - 4 - ids - names, []
        for at in range(self.first, len(columns)):
            room -= sizes[at] + 2
            if room < 0:
                break
            shown.append(at)
        self.hidden = bool(shown) and shown[-1] < len(columns) - 1
        head: list[Part] = [(" " * 3 + fit("run", ids + 1) + fit("name", names), "dim")]
        head += [("  " + columns[at].name.rjust(sizes[at]), "dim") for at in shown]
        rows = []
        for i, one in enumerate(facts):
            parts: list[Part] = [self.stroke(i), (fit(one.id, ids + 1), "strong"),
                                 (fit(one.name, names), "")]
            parts += [("  " + compare.cell(columns[at].values[i]).rjust(sizes[at]), "")
                      for at in shown]
            rows.append(Row(one.id, (tuple(parts),)))
        self.entitle("runs" + (" ─ ← →: more columns" if self.hidden or self.first else ""))
        return tuple(head), rows

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self.post_message(self.RunChosen(new))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()

    def action_open(self) -> None:
        from gpu_panel.run.screen import RunScreen

        if self.store is not None and self.store.runs:
            self.app.push_screen(RunScreen(self.store.runs[self.cursor].run))


_LEAST = 10


class DifferencesPane(CompareTable):
    """One row for each setting that differs, and a column for each run."""

    NAME = "differences"
    TITLE = "differences"
    KEYS = keys.of("compare-table")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """The settings in which the runs differ, and after them the commit, versions, devices
and machine, as far as they differ too. Everything that is not listed is the same."""
    DEFAULT_CSS = "DifferencesPane { height: auto; min-height: 3; }"

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.store is None or any(one.state is None for one in self.store.runs):
            return None, [Row("", ((("Reading …", "dim"),),))]
        facts = self.store.facts
        settings = compare.setting_rows([one for one in facts if one.settings])
        others = compare.environment_rows(facts)
        head = max((cells(row.name) for row in (*settings, *others)), default=0)
        head = min(head, width // 3)
        values = [cells(compare.cell(v)) for row in (*settings, *others) for v in row.values]
        widest = max([*values, *(cells(one.id) + 3 for one in facts)])
        most = max((width - head) // (min(widest, _LEAST) + 2), 1)
        count = min(len(facts), most)
        self.first = min(self.first, len(facts) - count)
        size = max(min(widest, (width - head) // count - 2), 1)
        shown = range(self.first, self.first + count)
        self.hidden = shown[-1] < len(facts) - 1
        top: list[Part] = [(" " * head, "dim")]
        for i in shown:
            sample, style = self.stroke(i)
            top.append((f"  {sample}" + fit(facts[i].id, size - 3), style))
        problems = [clean(f"{one.id}: its settings can't be read: {one.problem}")
                    for one in self.store.runs if one.problem is not None]
        rows = [Row("", (((text, "warn"),),)) for text in problems]
        for title, found in (("settings", settings), ("environment", others)):
            if rows and found:
                rows.append(Row("", ((("", ""),),)))
            for row in found:
                parts: list[Part] = [(fit(row.name, head), "strong")]
                of = dict(zip((i for i, one in enumerate(facts) if one.settings), row.values,
                              strict=True)) if title == "settings" else dict(enumerate(row.values))
                parts += [("  " + fit(compare.cell(of.get(i)), size), "") for i in shown]
                rows.append(Row(f"{title} {row.name}", (tuple(parts),)))
        if not settings:
            rows.insert(len(problems), Row("", ((("No setting differs.", "dim"),),)))
        self.entitle(f"differences ─ {len(settings)} in settings, {len(others)} in the environment"
                     + (" ─ ← →: more runs" if self.hidden or self.first else ""))
        return tuple(top), rows
