"""A chart of curves over a common x axis, and what a person can do with it: read values, zoom,
choose how it is drawn. `drawing` draws it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from gpu_panel import keys
from gpu_panel.charts import marks as marking
from gpu_panel.charts.drawing import Curve, CurveDrawing, Level
from gpu_panel.charts.marks import Mark
from gpu_panel.charts.series import Series

__all__ = ["Curve", "CurveView", "Level"]

SMOOTHING = (0.0, 0.6, 0.9)


class CurveView(CurveDrawing, can_focus=True):
    """Lines over a common x axis. `show` sets them and repaints if they have changed."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("chart"))

    def show(self, lines: list[Curve], over_all: Series | None = None,
             chosen: int | None = None, marks: Iterable[Mark] = (),
             levels: Iterable[Level] = ()) -> None:
        """Show these lines; repaints only if something has changed. `over_all`: the series over
        all lines, for the band; without it the band is made of the lines. `chosen`: the index of
        the line to draw on top."""
        marks, levels = tuple(marks), tuple(levels)
        state = ([(id(x.series), x.series.version, x.label) for x in lines], chosen, marks,
                 levels, self.axes)
        if state == self._drawn:
            return
        self._drawn = state
        self._lines, self._all, self._chosen = lines, over_all, chosen
        self.marks, self.levels = marks, levels
        self.redraw()

    def entitle(self, title: str) -> None:
        """Set the title in the border. An unchanged one is not set again, as that would repaint
        everything."""
        if title != self._title:
            self._title = title
            self.border_title = Content(title)

    def redraw(self) -> None:
        """Draw everything again with the next frame."""
        self._frame = None
        self.border_subtitle = self.modes()
        self.refresh()

    def modes(self) -> str:
        """How the chart is drawn, for the border: "log · smooth 0.6"."""
        found = ["log"] if self.log_scale else []
        found += [f"smooth {self.smooth}"] if self.smooth else []
        found += ["zoomed"] if self._window else []
        found += ["band"] if self._as_band() else []
        return " · ".join(found)

    # --- keys -----------------------------------------------------------------------------------

    def toggle_log(self) -> None:
        """Switch between a logarithmic and a linear scale."""
        self.log_scale = not self.log_scale
        self.redraw()

    def cycle_smoothing(self) -> None:
        """Use the next strength in `SMOOTHING`."""
        self.smooth = SMOOTHING[(SMOOTHING.index(self.smooth) + 1) % len(SMOOTHING)]
        self.redraw()

    def action_band(self) -> None:
        """Switch between a line for each rank, and their range and mean."""
        self.banded = not self._as_band()
        self.redraw()

    def action_whole(self) -> None:
        """Show the whole x range and hide the reading line."""
        self._window = self.cross = None
        self.redraw()

    def action_cross(self, by: int) -> None:
        """Move the reading line by `by` dots; the first call shows it at the end."""
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
        """Move the reading line to the next mark (1) or the previous one (-1)."""
        x0, x1 = self._range
        at = marking.beside(self.marks, (x1 if by < 0 else x0 - 1) if self.cross is None
                            else self.cross, by)
        if at is None:
            self.notify("There is no further mark" if self.marks else "This chart has no marks",
                        timeout=2)
            return
        self.cross = at
        if self._window is not None and not x0 <= at <= x1:
            half = (x1 - x0) / 2
            self._window = (at - half, at + half)
        self.redraw()

    def action_zoom(self, factor: float) -> None:
        """Show `factor` times as many steps, around the reading line or the end."""
        first, last = self._extent()
        x0, x1 = self._range
        width = max((x1 - x0) * factor, 4.0)
        if width >= last - first:
            self._window = None
        else:
            at = x1 if self.cross is None else self.cross
            share = (at - x0) / max(x1 - x0, 1e-9)
            left = min(max(at - share * width, first), last - width)
            self._window = (left, left + width)
        self.redraw()
