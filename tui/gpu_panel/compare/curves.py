"""The chart of the compare screen: a line for each run."""

from __future__ import annotations

from textual import work

from gpu_engine.common.clean import clean
from gpu_engine.common.ticks import time_ticks
from gpu_panel import keys
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common import units
from gpu_panel.common.textual_private import entitle
from gpu_panel.compare.curve import LOSS
from gpu_panel.compare.pane import ComparePane
from gpu_panel.compare.store import Compared, CompareStore


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
