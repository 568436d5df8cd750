"""A chart of curves, and what a person can do with it; `drawing` draws it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.events import (
    Click,
    MouseDown,
    MouseEvent,
    MouseMove,
    MouseScrollDown,
    MouseScrollLeft,
    MouseScrollRight,
    MouseScrollUp,
    MouseUp,
)
from textual.strip import Strip

from gpu_engine.common.series import Series
from gpu_panel import keys
from gpu_panel.charts import marks as marking
from gpu_panel.charts.drawing import Curve, CurveDrawing, Level
from gpu_panel.charts.marks import Mark
from gpu_panel.common.textual_private import entitle

__all__ = ["Curve", "CurveView", "Level"]

SMOOTHING = (0.0, 0.6, 0.9)
NARROWEST = 4.0
"""Steps; no zoom shows fewer."""
WHEEL = 1.25
"""One notch of the wheel shows so many times as many steps."""
SHIFT = 0.2
"""One notch to the side moves by this share of what is shown."""


class CurveView(CurveDrawing, can_focus=True):
    """Lines over a common x axis. `show` sets them and repaints if they have changed."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("chart"))

    def show(self, lines: list[Curve], over_all: Series | None = None,
             chosen: int | None = None, marks: Iterable[Mark] = (),
             levels: Iterable[Level] = ()) -> None:
        """Show these lines. `over_all`: the series over all lines, for the band; without it the
        band is made of the lines. `chosen`: the index of the line to draw on top."""
        marks, levels = tuple(marks), tuple(levels)
        state = ([(id(x.series), x.label, x.series.version) for x in lines], chosen, marks, levels,
                 self.axes)
        if state == self._drawn:
            return
        self._drawn = state
        self._lines, self._all, self._chosen = lines, over_all, chosen
        self.marks, self.levels = marks, levels
        self.redraw()

    def redraw(self) -> None:
        super().redraw()
        self._say_modes()

    def frame(self, width: int, height: int) -> list[Strip]:
        before = self.is_cut
        strips = super().frame(width, height)
        if self.is_cut != before:
            self.call_later(self._say_modes)
        return strips

    def _say_modes(self) -> None:
        entitle(self, subtitle=self.modes())

    def modes(self) -> str:
        """How the chart is drawn, for the border: "log · smooth 0.6"."""
        found = ["log"] if self.log_scale else []
        found += [f"smooth {self.smooth}"] if self.smooth else []
        found += ["zoomed"] if self._window else []
        found += ["outliers cut (a)"] if self.is_cut else []
        found += ["band"] if self._as_band() else []
        return " · ".join(found)

    # --- keys -----------------------------------------------------------------------------------

    def action_log_scale(self) -> None:
        self.log_scale = not self.log_scale
        self.redraw()

    def action_smooth(self) -> None:
        self.smooth = SMOOTHING[(SMOOTHING.index(self.smooth) + 1) % len(SMOOTHING)]
        self.redraw()

    def action_band(self) -> None:
        self.banded = not self._as_band()
        self.redraw()

    def action_range(self) -> None:
        self.robust = not self.robust
        self.redraw()

    def action_whole(self) -> None:
        self._window = self.cross = None
        self.redraw()

    def action_cross(self, by: int) -> None:
        """Move the crosshair by `by` dots; the first call shows it at the end."""
        x0, x1 = self._range
        step = max((x1 - x0) / max(2 * self._cells - 1, 1), 1.0)
        first, last = self._extent()
        at = x1 + (step if by < 0 else 0) if self.cross is None else self.cross
        self.cross = int(min(max(round(at + by * step), first), last))
        if self._window is not None and not x0 <= self.cross <= x1:
            shift = self.cross - (x0 if self.cross < x0 else x1)
            self._window = (x0 + shift, x1 + shift)
        self.redraw()

    def action_mark(self, by: int) -> None:
        x0, x1 = self._range
        at = marking.beside(self.marks, (x1 if by < 0 else x0 - 1) if self.cross is None
                            else self.cross, by)
        if at is None:
            self.notify("No further mark" if self.marks else "No marks on this chart",
                        timeout=2)
            return
        self.cross = at
        if self._window is not None and not x0 <= at <= x1:
            half = (x1 - x0) / 2
            self._window = (at - half, at + half)
        self.redraw()

    def action_zoom(self, factor: float, around: float | None = None) -> None:
        """Show `factor` times as many steps, around a step, else the reading line, else the end."""
        first, last = self._extent()
        x0, x1 = self._range
        width = max((x1 - x0) * factor, NARROWEST)
        if width >= last - first:
            self._window = None
        else:
            at = around if around is not None else x1 if self.cross is None else self.cross
            share = (at - x0) / max(x1 - x0, 1e-9)
            left = min(max(at - share * width, first), last - width)
            self._window = (left, left + width)
        self.redraw()

    def move(self, share: float) -> None:
        """Show what is beside the zoomed range: `share` of its width further on, or back."""
        if self._window is None:
            return
        first, last = self._extent()
        x0, x1 = self._window
        by = min(max((x1 - x0) * share, first - x0), last - x1)
        self._window = (x0 + by, x1 + by)
        self.redraw()

    # --- the mouse --------------------------------------------------------------------------------

    def on_mouse_move(self, event: MouseMove) -> None:
        """Read the values below the pointer, or choose a range while a button is held."""
        at = self._pointed(event)
        if self._drag is not None:
            self.selection = (self._drag, at)
            self.redraw()
        elif event.get_content_offset(self) is not None and round(at) != self.cross:
            if not self._hovering:
                self._hovering, self._before = True, self.cross
            self.cross = round(at)
            self.redraw()

    def on_leave(self) -> None:
        """The reading line goes back to where it was before the pointer came."""
        if self._hovering and self._drag is None:
            self._hovering, self.cross = False, self._before
            self.redraw()

    def on_mouse_down(self, event: MouseDown) -> None:
        if event.button == 1 and event.get_content_offset(self) is not None:
            self._drag = self._pointed(event)
            self.capture_mouse()

    def on_mouse_up(self, event: MouseUp) -> None:
        """Zoom to the chosen range; a click alone keeps the reading line where it is."""
        if self._drag is None:
            return
        self.release_mouse()
        low, high = sorted((self._drag, self._pointed(event)))
        self._drag = self.selection = None
        self._hovering = False
        x0, x1 = self._range
        if high - low >= (x1 - x0) * 2 / max(self._cells, 1):
            middle, half = (low + high) / 2, max(high - low, NARROWEST) / 2
            self._window = (middle - half, middle + half)
            self.cross = None
        else:
            self.cross = round(low)
        self.redraw()

    def on_click(self, event: Click) -> None:
        if event.chain == 2:
            self.action_whole()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(event, 1 / WHEEL)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(event, WHEEL)

    def on_mouse_scroll_left(self, event: MouseScrollLeft) -> None:
        event.stop()
        self.move(-SHIFT)

    def on_mouse_scroll_right(self, event: MouseScrollRight) -> None:
        event.stop()
        self.move(SHIFT)

    def _wheel(self, event: MouseEvent, factor: float) -> None:
        event.stop()
        if event.shift or event.ctrl:
            self.move(SHIFT if factor > 1 else -SHIFT)
        else:
            self.action_zoom(factor, self._pointed(event))

    def _pointed(self, event: MouseEvent) -> float:
        """The x below the pointer, or at the nearer end of the axis."""
        x0, x1 = self._range
        cell = event.x - self.gutter.left - self._gutter
        return x0 + min(max(cell / max(self._cells - 1, 1), 0.0), 1.0) * (x1 - x0)
