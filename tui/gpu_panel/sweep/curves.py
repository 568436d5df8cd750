"""The curves of a sweep: its members over each other, and beside them what each value led to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import log10

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series
from gpu_engine.runs.digest import By
from gpu_engine.sweep.table import Point, assigned, points, short, summary
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common.background import in_thread
from gpu_panel.common.painting import entitle
from gpu_panel.compare.store import CompareStore
from gpu_panel.sweep.lines import SweepStore

AGAIN = 0.5
"""Seconds between two paints while members train."""

_FINE = 1000
"""Marks of the axis of values from one value, or one decade, to the next."""


class SweepCurves(Horizontal):
    DEFAULT_CSS = """
    SweepCurves {
        height: 1fr; min-height: 6;
        CurveView { width: 1fr; height: 1fr; border: round $frame; }
        #members { width: 62fr; }
        #values { width: 38fr; }
    }
    """

    def compose(self) -> ComposeResult:
        yield CurveView(Axes(may_be_log=True, empty="no step"), id="members")
        yield CurveView(Axes(), id="values")

    def on_mount(self) -> None:
        """The table keeps the focus."""
        for view in self.query(CurveView):
            view.can_focus = False

    def show(self, store: CompareStore, points: Sequence[Point], keys: Sequence[str], by: By
             ) -> None:
        """Show what is known now. `points`: the lines of the table, the best first."""
        members, values = self.query(CurveView)
        of = {one.id: assigned(point.values) for point in points for one in point.members}
        best = points[0].members[0].id if points and points[0].best.mean is not None else None
        lines = [Curve(i, of.get(one.id, one.id), one.curve.over("step"))
                 for i, one in enumerate(store.runs)]
        members.show(lines, chosen=next(
            (i for i, one in enumerate(store.runs) if one.id == best), None))
        every = sum(len(point.members) for point in points)  # the store has the first ones
        first = f"the first {len(lines)} of " if len(lines) < every else ""
        members.entitle(f"loss ─ {first}{units.counted(every, 'run')}")
        key = max(keys, key=lambda k: len({p.values[k] for p in points}), default=None)
        reached: dict[str, float] = {}
        for point in reversed(points):  # of several with this value the best is last
            if key is not None and point.best.mean is not None:
                reached[point.values[key]] = point.best.mean
        values.display = len(reached) > 1
        if key is None or not values.display:
            return
        places, axes = axis(list(reached))
        drawn = Series()
        for place, value in sorted(zip(places, reached.values(), strict=True)):
            drawn.add(place, value)
        values.axes = axes
        values.show([Curve(0, key, drawn)])
        name = short([key])[0]
        values.entitle(f"best {by.name} by {name} ─ {units.loss(points[0].best.mean)} at "
                       f"{clean(points[0].values[key], 16)}")


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


class SweepPage(SweepCurves):
    """The same in the preview of the list of runs."""

    def __init__(self) -> None:
        super().__init__()
        self._sweep: SweepStore | None = None
        self._runs: CompareStore | None = None

    async def begin(self, sweep: str) -> None:
        """Get ready to show this sweep."""
        if self._sweep is None or self._sweep.sweep != sweep:
            self._sweep = SweepStore(sweep)
            self._runs = CompareStore([run for run, _ in (
                await in_thread(self._sweep.gather)).group.members])

    async def follow(self) -> None:
        """Read and paint until nothing changes any more. May be cancelled and called again."""
        assert self._runs is not None
        assert self._sweep is not None
        reading = asyncio.create_task(self._runs.follow())
        try:
            self.paint()
            going_on = True
            while going_on:  # once at least: a member of a sweep that had ended may be tried again
                await asyncio.wait({reading}, timeout=AGAIN)
                if reading.done():
                    reading.result()
                await in_thread(self._sweep.gather)
                self.paint()
                going_on = not self._runs.caught_up or self._runs.live
        finally:
            reading.cancel()

    def paint(self) -> None:
        if self._sweep is None or self._runs is None or (found := self._sweep.last) is None:
            return
        at = points(found.members, found.by)
        self.show(self._runs, at, found.group.keys, found.by)
        if isinstance(frame := self.parent, Widget) and self.display:
            entitle(frame, f"sweep {found.group.id} {found.group.name} ─ "
                           f"{summary(found.group.of, found.members)}", "enter whole screen")
