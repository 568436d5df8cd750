"""A chart of curves, and what a person can do with it; `drawing` draws it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click, MouseEvent, MouseScrollDown, MouseScrollUp
from textual.strip import Strip

from gpu_engine.common.series import Series
from gpu_panel import keys
from gpu_panel.charts.drawing import Curve, CurveDrawing
from gpu_panel.charts.marks import Mark
from gpu_panel.common.painting import entitle

__all__ = ["Curve", "CurveView"]

SMOOTHING = (None, 0.6, 0.9, 0.0)
"""None: where it is noisy."""
NARROWEST = 4.0
"""Steps; no zoom shows fewer."""
WHEEL = 1.25
"""One notch of the wheel shows so many times as many steps."""


class CurveView(CurveDrawing, can_focus=True):
    """Lines over a common x axis. `show` sets them and repaints if they have changed."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("chart"))
    _drawn: object = None
    _heading = ""

    def show(self, lines: list[Curve], over_all: Series | None = None,
             chosen: int | None = None, marks: Iterable[Mark] = ()) -> None:
        """Show these lines. `over_all`: the series over all lines, for the band; without it the
        band is made of the lines. `chosen`: the index of the line to draw on top."""
        marks = tuple(marks)
        state = ([(id(x.series), x.label, x.series.version, x.loose) for x in lines], chosen, marks,
                 self.axes)
        if state != self._drawn:
            self._drawn = state
            self.lines, self._all, self._chosen, self.marks = lines, over_all, chosen, marks
            self.redraw()

    def frame(self, width: int, height: int) -> list[Strip]:
        drawn = super().frame(width, height)
        self.call_later(self._say)
        return drawn

    def entitle(self, heading: str) -> None:
        """Set what the title says besides how the lines are drawn."""
        self._heading = heading
        self._say()

    def _say(self) -> None:
        title = self._heading
        if self.agree:  # then their extremes say nothing
            title = re.sub(rf", {self.LINES} \S+ to \S+| on all {self.LINES}", "", title) \
                + f" · {self.agree} {self.LINES} agree"
        modes = ["log"] * self.is_log + [f"smooth {self.smooth}"] * (self.smooth is not None) \
            + ["zoomed"] * bool(self.window) + ["begins above"] * self.is_cut
        entitle(self, title or None, " · ".join(modes))

    def action_log_scale(self) -> None:
        self.log_scale = not self.is_log
        self.redraw()

    def action_smooth(self) -> None:
        self.smooth = SMOOTHING[(SMOOTHING.index(self.smooth) + 1) % len(SMOOTHING)]
        self.redraw()

    def action_whole(self) -> None:
        self.window = self.cross = None
        self.redraw()

    def action_cross(self, by: int) -> None:
        """Move the crosshair by `by` dots; the first call shows it at the end."""
        x0, x1 = self._range
        step = max((x1 - x0) / max(2 * self._cells - 1, 1), self.axes.x_each)
        first, last = self._extent()
        at = x1 + (step if by < 0 else 0) if self.cross is None else self.cross
        self.cross = min(max(self._crossed(at + by * step), first), last)
        if self.window is not None and not x0 <= self.cross <= x1:
            shift = self.cross - (x0 if self.cross < x0 else x1)
            self.window = (x0 + shift, x1 + shift)
        self.redraw()

    def action_zoom(self, factor: float, around: float | None = None) -> None:
        """Show `factor` times as many steps, around a step, else the crosshair, else the end."""
        first, last = self._extent()
        x0, x1 = self._range
        width = max((x1 - x0) * factor, NARROWEST)
        if width >= last - first:
            self.window = None
        else:
            at = around if around is not None else x1 if self.cross is None else self.cross
            share = (at - x0) / max(x1 - x0, 1e-9)
            left = min(max(at - share * width, first), last - width)
            self.window = (left, left + width)
        self.redraw()

    # --- the mouse --------------------------------------------------------------------------------

    def on_click(self, event: Click) -> None:
        self.cross = self._crossed(self._pointed(event))
        self.redraw()

    def _crossed(self, x: float) -> int:
        return round(x / self.axes.x_each) * self.axes.x_each

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_zoom(1 / WHEEL, self._pointed(event))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_zoom(WHEEL, self._pointed(event))

    def _pointed(self, event: MouseEvent) -> float:
        """The x below the pointer, or at the nearer end of the axis."""
        x0, x1 = self._range
        cell = event.x - self.gutter.left - self._gutter
        return x0 + min(max(cell / max(self._cells - 1, 1), 0.0), 1.0) * (x1 - x0)
