"""The curves of several runs over each other, and beside those of a sweep what each value has led
to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, log10

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series
from gpu_engine.common.ticks import step_ticks, time_ticks
from gpu_engine.sweep.study import SoFar
from gpu_engine.sweep.table import Point, short
from gpu_panel import keys
from gpu_panel.charts.axes import Axes, most_shown
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common.painting import entitle
from gpu_panel.common.panes import Pane
from gpu_panel.common.picking import pick
from gpu_panel.run.subjects import LOSS
from gpu_panel.several.store import TRIES, SeveralStore, name_of

AGAIN = 0.5
"""Seconds between two paints while members train."""
_FINE = 1000
"""Marks of the axis of values from one value, or one decade, to the next."""


_DOTS = 0.25
"""`most_shown` of values of which each is a dot: more of them can be told apart."""
_PARTS = 100
"""Marks of the axis of tries from one to the next."""
_OF_TRIES = Axes(x_name="try", x_each=_PARTS, x_text=lambda x: f"{x / _PARTS:,.0f}",
                 may_be_log=True, empty="no value yet",
                 x_ticks=lambda low, high, most: [_PARTS * v for v in step_ticks(
                     max(low / _PARTS, 1), high / _PARTS, most)])


def _above(most: float, values: Sequence[float]) -> str:
    """How many are above the chart, for its title."""
    many = sum(value > most for value in values)
    return f", {many} above" if many else ""


def of_tries(search: SoFar) -> list[Curve]:
    """The best so far as a line in steps, and a dot for each try. x: _PARTS for each try."""
    best, each = Series(), Series()
    ends = [at * _PARTS - 1 for at, _ in search.best[1:]] + [search.asked_for * _PARTS]
    for (at, value), end in zip(search.best, ends, strict=True):
        # Not its two ends alone: of a line with few points each of them is marked.
        xs = [*range(at * _PARTS, end, _PARTS // 10), end]
        best.add_rising(xs, [value] * len(xs))
    for at, value in search.reached:
        each.add(at * _PARTS, value)
    return [Curve(0, "best so far", best), Curve(1, "each try", each, loose=True)]


def _over_time(axes: Axes) -> Axes:
    """The same values over milliseconds."""
    return replace(axes, x_text=_clock, x_name="at", x_ticks=_time_ticks)


def _clock(x: float) -> str:
    return units.clock(x / 1000) if x >= 10_000 else f"{x / 1000:.1f} s"


def _time_ticks(low: float, high: float, most: int) -> list[float]:
    return [1000 * v for v in time_ticks(low / 1000, high / 1000, most)]


class CurvesPane(CurveView, Pane):
    """The curves of all runs. Its own keys work on the whole screen."""

    NAME = TITLE = "curves"
    KEYS = keys.of("chart", "curves")
    HELP = """One line for each run, the mean of its first ranks; the run under the cursor of the
table is on top. x draws them over steps, or over the time since each run began (without the time
between its attempts). c chooses another value, of all that runs record. What a loss falls from in
its first steps may be above the chart, and so are runs that diverged. Of a search it shows the best
so far against the tries, and c, in this pane, brings the curves. Beside it, of a sweep, what each
value has led to: ● where runs are done, ○ as far as they have got."""
    DEFAULT_CSS = "CurvesPane { width: 62fr; }"

    def __init__(self, store: SeveralStore) -> None:
        super().__init__(Axes(empty="reading …"), id=self.NAME)
        self.store = store

    def paint(self, chosen: int | None) -> None:
        """Show what is known now. `chosen`: the number of the run that is drawn on top."""
        store = self.store
        if not store.runs:
            return
        if store.search is not None and store.key == TRIES:
            values = [value for _, value in store.search.reached]
            most = most_shown(min(values, default=inf), values, _DOTS)
            self.axes = replace(_OF_TRIES, most=most)
            self.show(of_tries(store.search), None, 1)  # the dots are not below the line
            self.entitle(store.search.line + _above(most, values))
            return
        subject = store.subject
        by_time = store.by_time or subject.by_time
        axes = _over_time(subject.axes) if store.by_time and not subject.by_time else subject.axes
        curves = store.curves()
        # What each rises to, but for the spike that it begins with.
        tops = [max(one.series.hi[max(len(one.series) // 20, 1):], default=-inf) for one in curves]
        most = inf if axes.zero else most_shown(
            min((min(one.series.lo) for one in curves), default=inf), tops)
        self.axes = replace(axes, settles=subject.key == LOSS, most=most,
                            empty="no value" if store.caught_up else "reading …")
        self.show(curves, None, chosen)
        reading = "" if store.caught_up else f", reading {store.read_share:.0%}"
        some, every = len(store.runs), len(store.members)
        those = f" ─ the first {some} of {every:,} runs" if some < every else ""
        over = "time" if by_time else "steps"
        above = _above(most, tops)
        self.entitle(f"{name_of(subject)} over {over}{those}{reading}{above}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "axis" or self.store.key != TRIES

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        return "The best so far is drawn over tries; c brings the curves"

    def action_axis(self) -> None:
        self._show(self.store.key, not self.store.by_time)

    def action_value(self) -> None:
        pick(self.app, "What the chart shows", [
            (name, units.counted(many, "run"), partial(self._choose, key))
            for key, (name, many) in self.store.names.items()])

    def _choose(self, key: str) -> None:
        self.log_scale = None
        self._show(key, self.store.by_time)

    def _show(self, key: str, by_time: bool) -> None:
        self.store.show(key, by_time)
        self.action_whole()  # what was zoomed in means nothing on another axis
        self.paint(self._chosen)


class ValuesChart(CurveView):
    """What each value of the key that matters or varies most has led to."""

    DEFAULT_CSS = "ValuesChart { width: 38fr; display: none; }"

    def on_mount(self) -> None:
        self.can_focus = False

    def paint(self, points: Sequence[Point], keys: Sequence[str], name: str,
              search: SoFar | None) -> None:
        """`points`: the lines of the table, the best first. `name`: of the value that decides. Of a
        `search` whose values have no order but that of chance, each is a dot; it is the key that
        matters most, where that is known."""
        matters = search.matters if search is not None else {}
        key = max(keys, key=lambda k: (matters.get(k, 0.0), len({p.values[k] for p in points})),
                  default="")
        reached: dict[str, Point] = {}
        for point in sorted(points, key=lambda p: p.partial):  # one that is done counts more
            if key and point.best.mean is not None:
                reached.setdefault(point.values[key], point)
        self.display = len(reached) > 1
        if not self.display:
            return
        places, axes = axis(list(reached))
        values = [point.best.mean or 0.0 for point in reached.values()]
        most = most_shown(min(values), values, _DOTS)
        self.axes = replace(axes, most=most)
        done, others = Series(), Series()
        for place, point in sorted(zip(places, reached.values(), strict=True), key=lambda p: p[0]):
            series = others if point.partial or search is not None else done
            series.add(place, point.best.mean or 0.0)
        loose = "as far as it got" if search is None else "each try"
        self.show([Curve(0, label, series, loose=series is others) for label, series in (
            ("done", done), (loose, others)) if len(series)])
        self.entitle(f"best {name} by {short([key])[0]} ─ {units.loss(points[0].best.mean)} at "
                     f"{clean(points[0].values[key], 16)}{_above(most, values)}")


class Curves(Horizontal):
    """Both charts; one of them takes the whole width where the other has nothing to say."""

    DEFAULT_CSS = "Curves { height: 1fr; min-height: 6; CurveView { height: 1fr; } }"

    def __init__(self, store: SeveralStore) -> None:
        super().__init__()
        self.store = store

    def compose(self) -> ComposeResult:
        yield CurvesPane(self.store)
        yield ValuesChart(classes="pane")

    def draw(self, chosen: int | None) -> None:
        """Show what is known now. `chosen`: the number of the run that is drawn on top."""
        curves, values, store = self.query_one(CurvesPane), self.query_one(ValuesChart), self.store
        curves.paint(chosen)
        if store.group is not None:
            values.paint(store.points, store.group.keys, store.by.name, store.search)
            curves.display = bool(curves.lines) or not (values.display and store.caught_up)


def axis(texts: Sequence[str]) -> tuple[list[int], Axes]:
    """The place of each value on an axis, and the axis: numbers at their distance, logarithmic
    where they span more than a decade; other values side by side."""
    try:
        numbers = [float(text) for text in texts]
        low, high = min(numbers), max(numbers)
        wide = (high - low) or 1.0
        places = [round(_FINE * log10(n / low)) for n in numbers] if 0 < 10 * low < high else \
            [round(_FINE * (n - low) / wide) for n in numbers]
    except (ValueError, OverflowError):
        places = [_FINE * i for i in range(len(texts))]
    known = dict(sorted(zip(places, map(clean, texts), strict=True)))

    def ticks(x0: float, x1: float, most: int) -> list[float]:
        shown = [x for x in known if x0 <= x <= x1]
        return [float(x) for x in shown[::-(-len(shown) // max(most, 1)) or 1]]

    return places, Axes(x_text=lambda x: known.get(round(x), ""), x_name="", x_ticks=ticks,
                        may_be_log=True, empty="no value yet")


class SweepPage(Curves):
    """The same in the preview of the list of runs."""

    def __init__(self) -> None:
        super().__init__(SeveralStore())

    def on_mount(self) -> None:
        for view in self.query(CurveView):
            view.can_focus = False

    async def begin(self, sweep: str) -> None:
        """Get ready to show this sweep."""
        if self.store.sweep != sweep:
            self.store = self.query_one(CurvesPane).store = SeveralStore(sweep=sweep)
            await self.store.once()
        self.store.stale = True  # a member of a sweep that had ended may have been tried again

    async def follow(self) -> None:
        """Read and paint until nothing changes any more. May be cancelled and called again."""
        store, reading = self.store, asyncio.create_task(self.store.follow())
        try:
            while True:
                self.paint()
                if store.caught_up and not store.live and not store.stale:
                    return
                await asyncio.wait({reading}, timeout=AGAIN)
                if reading.done():
                    reading.result()
        finally:
            reading.cancel()

    def paint(self) -> None:
        self.draw(self.store.best)
        if isinstance(frame := self.parent, Widget) and self.display:
            entitle(frame, self.store.title, "enter whole screen")
