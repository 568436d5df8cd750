"""A chart with the curves of all ranks, drawn in braille without a plotting library.

Every column keeps its least and greatest value, so a spike of one step is visible at any zoom. A
value that is not finite breaks the line and is marked at the top edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from gpu_panel import keys
from gpu_panel.charts import palette
from gpu_panel.charts.axes import (
    ColumnValues,
    Scale,
    reduce,
    scale_of,
    smoothed,
    step_ticks,
    tick_labels,
)
from gpu_panel.charts.braille import Canvas, band, stroke
from gpu_panel.charts.series import Series
from gpu_panel.common import units

SMOOTHING = (0.0, 0.6, 0.9)
OVERLAID = 16
"""With more ranks than this, their range and mean are drawn instead of a line for each."""

_NONE, _AXIS, _FAINT, _MEAN, _BAD, _CROSS, _BOX, _EMPTY, _LINES = range(9)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    index: int
    """The position of its rank among the ranks, which decides its colour and dash."""
    label: str
    series: Series
    faint: bool = False


class CurveView(Widget, can_focus=True):
    """Lines over a common x axis. `show` sets them and repaints if they have changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "curve--axis", "curve--faint", "curve--mean", "curve--bad", "curve--cross", "curve--box",
        "curve--empty",
    }
    DEFAULT_CSS = """
    CurveView {
        .curve--axis { color: $text-muted; }
        .curve--faint { color: $faint; }
        .curve--mean { color: $foreground; text-style: bold; }
        .curve--bad { color: $text-error; text-style: bold; }
        .curve--cross { color: $text-muted; }
        .curve--box { color: $foreground; background: $boost; }
        .curve--empty { color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("chart"))

    def __init__(self, *, y_text: Callable[[float | None], str] = units.loss,
                 x_text: Callable[[int], str] = lambda x: f"{x:,}", x_name: str = "step",
                 x_ticks: Callable[[float, float, int], list[float]] = step_ticks,
                 y_unit: float = 1.0, zero: bool = False, empty: str = "nothing yet",
                 id: str | None = None, classes: str | None = None) -> None:
        """`y_text`, `x_text`: format a value and an x at the reading line. `x_name`: the word
        before that x. `x_ticks`: chooses the numbers along the x axis. `y_unit`: the unit of the
        numbers along the y axis. `zero`: the y axis starts at 0. `empty`: shown while there is no
        value."""
        super().__init__(id=id, classes=classes)
        self._y_text, self._x_text, self._x_name = y_text, x_text, x_name
        self._x_ticks = x_ticks
        self._y_unit, self._zero, self._empty_text = y_unit, zero, empty
        self._lines: list[Curve] = []
        self._all: Series | None = None
        self._chosen: int | None = None
        self._frame: list[Strip] | None = None
        self._drawn: object = None
        self._title = ""
        self._styles: list[Style] = []
        self._window: tuple[float, float] | None = None
        self._range = (0.0, 1.0)
        self._cells = 1
        self.log_scale = False
        self.smooth = 0.0
        self.banded: bool | None = None
        """Whether the range is drawn instead of the lines; None: decided by the number of
        ranks."""
        self.cross: int | None = None
        """Where the reading line is; None if it is hidden."""
        self.marks: tuple[int, ...] = ()
        """Where faint vertical lines are drawn."""

    # --- what is shown --------------------------------------------------------------------------

    def show(self, lines: list[Curve], over_all: Series | None = None,
             chosen: int | None = None, marks: Iterable[int] = ()) -> None:
        """Show these lines; repaints only if something has changed. `over_all`: the series over
        all lines, for the band; `chosen`: the index of the line to draw on top; `marks`: where
        faint vertical lines are drawn."""
        marks = tuple(marks)
        state = ([(id(x.series), x.series.version, x.label) for x in lines], chosen, marks)
        if state == self._drawn:
            return
        self._drawn = state
        self._lines, self._all, self._chosen, self.marks = lines, over_all, chosen, marks
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

    def notify_style_update(self) -> None:
        self._frame = None
        self._styles = []
        super().notify_style_update()

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

    # --- drawing --------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._frame is None or len(self._frame) != height \
                or (self._frame and self._frame[0].cell_length != width):
            self._frame = self.frame(width, height)
        return self._frame[y] if y < len(self._frame) else Strip.blank(width)

    def frame(self, width: int, height: int) -> list[Strip]:
        """The whole chart as strips."""
        if width < 1 or height < 1:
            return []
        canvas = Canvas(width, height)
        self._paint(canvas)
        return self._strips(canvas)

    def _paint(self, canvas: Canvas) -> None:
        first, last = self._extent()
        x0, x1 = self._window or (first, max(last, first + 1))
        self._range = (x0, x1)
        wide, high = canvas.width, canvas.height
        banded = self._as_band()
        shown = [] if banded else self._lines
        if banded:
            shown = [x for x in self._lines if x.index == self._chosen]
        plot_high = high - 1 if high > 3 else high
        guess = max(wide - 8, 1) * 2
        total = self._all if banded else None
        over_all = reduce(total, x0, x1, guess) if total else None
        found = [reduce(line.series, x0, x1, guess) for line in shown]
        scale = scale_of([*found, *([over_all] if over_all else [])], plot_high * 4,
                         log=self.log_scale, zero=self._zero)
        bad = {c for columns in (*found, over_all) if columns for c in columns.bad}
        if scale is None:
            text = "no finite value" if bad else self._empty_text
            canvas.text(max((wide - len(text)) // 2, 0), (high - 1) // 2, text, _EMPTY)
            return
        values = scale.ticks(max(plot_high // 3, 2), self._y_unit)
        labels = tick_labels([v / self._y_unit for v in values])
        gutter = min(max(map(len, labels), default=0) + 1, max(wide - 4, 0))
        cells = self._cells = max(wide - gutter, 1)
        if cells * 2 != guess:
            if total:
                over_all = reduce(total, x0, x1, cells * 2)
            found = [reduce(line.series, x0, x1, cells * 2) for line in shown]
        plot = Canvas(cells, plot_high)
        if over_all is not None:
            self._paint_band(plot, over_all, scale)
        self._paint_lines(plot, shown, found, scale)
        self._mark(plot, (*found, *([over_all] if over_all else [])))
        self._paint_marks(plot, x0, x1)
        self._paint_cross(plot, x0, x1)
        for row in range(plot_high):
            canvas.chars[row][gutter:] = plot.chars[row]
            canvas.styles[row][gutter:] = plot.styles[row]
        for value, label in zip(values, labels, strict=True):
            row = plot_high - 1 - scale.dot(value) // 4
            canvas.text(gutter - 1 - len(label), row, label, _AXIS)
        if plot_high < high:
            self._paint_steps(canvas, gutter, x0, x1)

    def _paint_band(self, plot: Canvas, columns: ColumnValues, scale: Scale) -> None:
        plot.paint(band(scale.points(columns)), _FAINT)
        # Even with strength 0 this makes a line out of the means.
        mean = smoothed(columns, self.smooth)
        plot.paint(stroke(scale.points(mean), broken=mean.bad), _MEAN)

    def _paint_lines(self, plot: Canvas, lines: list[Curve], found: list[ColumnValues],
                     scale: Scale) -> None:
        pairs = sorted(zip(lines, found, strict=True), key=lambda p: p[0].index == self._chosen)
        if self.smooth:
            for _, columns in pairs:
                plot.paint(stroke(scale.points(columns), broken=columns.bad), _FAINT)
        for line, columns in pairs:
            drawn = smoothed(columns, self.smooth) if self.smooth else columns
            dash = palette.dash_of(self.app, line.index) + (2 if line.faint else 0)
            plot.paint(stroke(scale.points(drawn), dash, drawn.bad),
                       _LINES + line.index % palette.HUES)

    def _mark(self, plot: Canvas, found: tuple[ColumnValues, ...]) -> None:
        for cell in {c // 2 for columns in found for c in columns.bad}:
            plot.text(cell, 0, "×", _BAD)

    def _paint_marks(self, plot: Canvas, x0: float, x1: float) -> None:
        for x in self.marks:
            if x0 <= x <= x1:
                self._vertical(plot, x, "┊", _FAINT)

    def _vertical(self, plot: Canvas, x: int, char: str, style: int) -> int:
        """Draw a vertical line behind what is there. Returns the column of its cell."""
        x0, x1 = self._range
        cell = round((x - x0) / max(x1 - x0, 1e-9) * (2 * plot.width - 1)) // 2
        for row in range(plot.height):
            if plot.chars[row][cell] == " ":
                plot.text(cell, row, char, style)
        return cell

    def _paint_cross(self, plot: Canvas, x0: float, x1: float) -> None:
        if self.cross is None or not x0 <= self.cross <= x1:
            return
        cell = self._vertical(plot, self.cross, "│", _CROSS)
        rows = self.reading(plot.height)
        wide = max(map(len, rows), default=0)
        left = cell + 2 if cell < plot.width // 2 else cell - wide - 3
        left = min(max(left, 0), max(plot.width - wide - 2, 0))
        for y, row in enumerate(rows):
            plot.text(left, y, f" {row.ljust(wide)} ", _BOX)

    def reading(self, most: int = 99) -> list[str]:
        """The values at the reading line, in at most `most` rows of text."""
        if self.cross is None:
            return []
        rows = [f"{self._x_name} {self._x_text(self.cross)}"]
        if len(self._lines) > 1 and self._all is not None and (at := self._all.at(self.cross)):
            rows.append(f"mean {self._y_text(at[1])}")
            if len(self._lines) > OVERLAID:
                rows.append(f"least {self._y_text(at[0])}, most {self._y_text(at[2])}")
        for line in self._lines:
            at = line.series.at(self.cross)
            rows.append(f"{line.label}  {self._y_text(at[1] if at else None)}")
        if len(rows) > most:
            rows = [*rows[:max(most - 1, 1)], f"… {len(rows) - most + 1} more"]
        return rows

    def _paint_steps(self, canvas: Canvas, gutter: int, x0: float, x1: float) -> None:
        cells = canvas.width - gutter
        wide = max(len(self._x_text(int(x1))), 3) + 3
        free = gutter
        for value in self._x_ticks(x0, x1, max(cells // wide, 2)):
            text = self._x_text(int(value))
            cell = round((value - x0) / max(x1 - x0, 1e-9) * (cells - 1))
            left = min(gutter + cell - len(text) // 2, canvas.width - len(text))
            if left >= free:
                canvas.text(left, canvas.height - 1, text, _AXIS)
                free = left + len(text) + 1

    def _strips(self, canvas: Canvas) -> list[Strip]:
        styles = self._styles = self._styles or self._find_styles()
        strips = []
        for chars, numbers in zip(canvas.chars, canvas.styles, strict=True):
            segments, begin = [], 0
            for x in range(1, canvas.width + 1):
                if x == canvas.width or numbers[x] != numbers[begin]:
                    segments.append(Segment("".join(chars[begin:x]), styles[numbers[begin]]))
                    begin = x
            strips.append(Strip(segments, canvas.width))
        return strips

    def _find_styles(self) -> list[Style]:
        ground = self.rich_style
        named = ("axis", "faint", "mean", "bad", "cross", "box", "empty")
        own = [self.get_component_rich_style(f"curve--{n}") for n in named]
        return [ground, *own, *(ground + s for s in palette.strokes(self.app))]

    def _extent(self) -> tuple[int, int]:
        """The least and the greatest x of all lines."""
        starts = [x.series.start for x in self._lines if x.series.start is not None]
        ends = [x.series.last for x in self._lines if x.series.last is not None]
        return min(starts, default=0), max(ends, default=1)

    def _as_band(self) -> bool:
        if self._all is None or len(self._lines) < 2:
            return False
        return len(self._lines) > OVERLAID if self.banded is None else self.banded
