"""Draws the curves of all ranks in braille, without a plotting library.

Every column keeps its least and greatest value, so a spike of one step is visible at any zoom. A
value that is not finite breaks the line and is marked at the top edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from gpu_engine.common.series import Series
from gpu_engine.common.ticks import tick_labels
from gpu_panel.charts import marks as marking
from gpu_panel.charts import palette
from gpu_panel.charts.axes import (
    Axes,
    ColumnValues,
    Scale,
    gaps,
    merged,
    reduce,
    scale_of,
    smoothed,
)
from gpu_panel.charts.braille import Canvas, Point, band, stroke, thick
from gpu_panel.charts.marks import Mark
from gpu_panel.common.painting import refresh_changed

OVERLAID = 16
"""With more ranks than this, their range and mean are drawn instead of a line for each."""

AXES = Axes()
_NONE, _AXIS, _FAINT, _MEAN, _BAD, _CROSS, _BOX, _EMPTY, _LINES = range(9)
_ROUGH = 2.0
"""Dots from the least to the greatest value of a column, on average."""
_LEGEND_FROM = 8
"""From this height on, in cells, a chart with several lines has a legend."""
SAMPLES = ("━━", "╍╍", "┅┅", "╍┅", "┈┈")
"""How the dashes of `braille.DASHES` look in a legend."""


def _is_rough(points: Sequence[Point | None]) -> bool:
    """Whether bars would hide the line: then their range is faint, and the line that of means."""
    high = [p[2] - p[0] for p in points if p is not None]
    return sum(high) > _ROUGH * len(high)


@dataclass(frozen=True, slots=True)
class Curve:
    index: int
    """The position of its rank among the ranks, which decides its colour and dash. The chosen
    one's line is thick and on top."""
    label: str
    series: Series
    faint: bool = False
    """Whether it belongs to another line, and is drawn with another dash."""


@dataclass(frozen=True, slots=True)
class ZoomSeries:
    """What is known more finely of a part of the x axis, from `first` to `last`."""

    first: int
    last: int
    series: Mapping[int, Series]
    """`id` of a series that is shown → the one that has more of this part."""


@dataclass(frozen=True, slots=True)
class Level:
    """A value that is drawn as a line across the chart, such as a card's capacity."""

    value: float
    label: str


class CurveDrawing(Widget):
    """A chart as it is drawn; what can be done with it is in `curves`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "curve--axis", "curve--faint", "curve--mean", "curve--bad", "curve--cross", "curve--box",
        "curve--empty",
    }
    DEFAULT_CSS = """
    CurveDrawing {
        .curve--axis { color: $text-muted; }
        .curve--faint { color: $faint; }
        .curve--mean { color: $foreground; text-style: bold; }
        .curve--bad { color: $text-error; text-style: bold; }
        .curve--cross { color: $text-muted; }
        .curve--box { color: $foreground; background: $boost; }
        .curve--empty { color: $text-muted; }
    }
    """
    def __init__(self, axes: Axes = AXES, *, id: str | None = None,
                 classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.axes = axes
        """What its numbers are; set it before `show`."""
        self._lines: list[Curve] = []
        self._all: Series | None = None
        self._chosen: int | None = None
        self._frame: list[Strip] | None = None
        self._sent: dict[int, Strip] = {}
        self._drawn: object = None
        self._styles: list[Style] = []
        self._window: tuple[float, float] | None = None
        self._range = (0.0, 1.0)
        self.zoomed: ZoomSeries | None = None
        self._cells = 1
        self._gutter = 8
        """The width of the numbers along the y axis, as it was drawn last: with a good guess, the
        series are reduced once and not twice."""
        self.log_scale = False
        self.smooth = 0.0
        self.robust = False
        """Whether values far outside may be cut off, and are marked."""
        self.is_cut = False
        self.banded: bool | None = None
        """Whether the range is drawn in place of the lines; None: that depends on their number."""
        self.cross: int | None = None
        """Where the reading line is; None if it is hidden."""
        self.marks: tuple[Mark, ...] = ()
        self.levels: tuple[Level, ...] = ()
        self.selection: tuple[float, float] | None = None
        """The range that is being chosen with the mouse; None if none is."""
        self._drag: float | None = None
        """Where a button of the mouse was pressed; None if none is held."""
        self._hovering = False
        self._before: int | None = None
        """Where the reading line was before that."""

    def notify_style_update(self) -> None:
        self._frame = None
        self._styles = []
        super().notify_style_update()

    def redraw(self) -> None:
        """Draw it again, once all that is known now has been taken in."""
        if self._frame is not None:
            self._frame = None
            self.call_later(refresh_changed, self, self._sent, self._line)

    def render_line(self, y: int) -> Strip:
        self._sent[y] = strip = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        width, height = self.size
        if self._frame is None or len(self._frame) != height \
                or (self._frame and self._frame[0].cell_length != width):
            self._frame = self.frame(width, height)
        return self._frame[y] if y < len(self._frame) else Strip.blank(width)

    def frame(self, width: int, height: int) -> list[Strip]:
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
        shown = [x for x in self._lines if x.index == self._chosen] if banded else self._lines
        guess = max(wide - self._gutter, 1) * 2
        over_all, found = self._reduced(banded, shown, x0, x1, guess)
        below = 1 if high > 3 else 0
        entries = self._entries(banded, shown)
        above = 1 if high >= _LEGEND_FROM and len(entries) > 1 else 0
        plot_high = high - below - above
        every = [*found, *([over_all] if over_all else [])]
        scale = scale_of(every, plot_high * 4,
                         log=self.log_scale, zero=self.axes.zero, robust=self.robust,
                         upto=[level.value for level in self.levels])
        if scale is None:
            text = "no finite value" if any(c.bad for c in every) else self.axes.empty
            canvas.text(max((wide - len(text)) // 2, 0), (high - 1) // 2, text, _EMPTY)
            return
        values = scale.ticks(max(plot_high // 3, 2), self.axes.y_unit)
        labels = tick_labels([v / self.axes.y_unit for v in values])
        unit = self.axes.unit if below else ""
        gutter = min(max(map(len, (*labels, unit)), default=0) + 1, max(wide - 4, 0))
        self._gutter, cells = gutter, max(wide - gutter, 1)
        self._cells = cells
        if cells * 2 != guess:
            over_all, found = self._reduced(banded, shown, x0, x1, cells * 2)
        plot = Canvas(cells, plot_high)
        self._paint_levels(plot, scale)
        if over_all is not None:
            self._paint_band(plot, over_all, scale)
        self._paint_lines(plot, shown, found, scale)
        self.is_cut = False
        for line, columns in zip(shown, found, strict=True):
            self._mark_cut(plot, columns, scale, _LINES + line.index % palette.HUES)
        if over_all is not None:
            self._mark_cut(plot, over_all, scale, _MEAN)
        for cell in {c // 2 for columns in (*found, over_all) if columns for c in columns.bad}:
            plot.text(cell, 0, "×", _BAD)
        marking.paint(plot, self.marks, x0, x1, _CROSS)
        self._paint_selection(plot, x0, x1)
        self._paint_cross(plot, x0, x1)
        for row in range(plot_high):
            canvas.chars[above + row][gutter:] = plot.chars[row]
            canvas.styles[above + row][gutter:] = plot.styles[row]
        for value, label in zip(values, labels, strict=True):
            row = above + plot_high - 1 - scale.dot(value) // 4
            canvas.text(gutter - 1 - len(label), row, label, _AXIS)
        if above:
            for x, text, style in legend(entries, cells):
                canvas.text(gutter + x, 0, text, style or _AXIS)
        if below:
            canvas.text(0, high - 1, unit, _AXIS)
            self._paint_steps(canvas, gutter, x0, x1)

    def _reduced(self, banded: bool, shown: Sequence[Curve], x0: float, x1: float, width: int,
                 ) -> tuple[ColumnValues | None, list[ColumnValues]]:
        """The band (None if none is drawn) and the lines that are drawn, in columns of dots."""
        found = [reduce(self._finest(line.series), x0, x1, width) for line in shown]
        if not banded:
            return None, found
        if self._all is not None:
            return reduce(self._finest(self._all), x0, x1, width), found
        return merged([reduce(self._finest(line.series), x0, x1, width)
                       for line in self._lines if not line.faint]), found

    def _entries(self, banded: bool, shown: Sequence[Curve]) -> list[Entry]:
        levels: list[Entry] = [("╌╌", level.label, _FAINT) for level in self.levels]
        if banded:
            many = sum(not line.faint for line in self._lines)
            return [("⣀⡠", f"mean of {many}", _MEAN), ("⢕⢕", "range", _FAINT),
                    *levels, *self._samples(shown)]
        return [*levels, *self._samples(shown)]

    def _samples(self, shown: Sequence[Curve]) -> list[Entry]:
        faint = next((line for line in shown if line.faint), None)
        found = [(SAMPLES[2], faint.label.rpartition(" ")[2], _AXIS)] if faint else []
        before = ""
        for line in shown:
            if line.faint:
                continue
            kind, _, number = line.label.rpartition(" ")  # "rank 0", "1", "2": the word once
            found.append((SAMPLES[palette.dash_of(self.app, line.index) % len(SAMPLES)],
                          number if before == kind else line.label,
                          _LINES + line.index % palette.HUES))
            before = kind
        return found

    def _paint_levels(self, plot: Canvas, scale: Scale) -> None:
        for level in self.levels:
            row = plot.height - 1 - scale.dot(level.value) // 4
            plot.text(0, row, "╌" * plot.width, _FAINT)

    def _paint_band(self, plot: Canvas, columns: ColumnValues, scale: Scale) -> None:
        plot.paint(band(scale.points(columns)), _FAINT)
        # Even with strength 0 this makes a line out of the means.
        mean = smoothed(columns, self.smooth)
        plot.paint(stroke(scale.points(mean), broken=mean.bad | self._gaps(columns)), _MEAN)

    def _paint_lines(self, plot: Canvas, lines: Sequence[Curve], found: list[ColumnValues],
                     scale: Scale) -> None:
        pairs = sorted(zip(lines, found, strict=True), key=lambda p: p[0].index == self._chosen)
        rough = bool(self.smooth) or any(_is_rough(scale.points(columns)) for _, columns in pairs)
        if rough:
            for _, columns in pairs:
                plot.paint(stroke(scale.points(columns), broken=columns.bad), _FAINT)
        for line, columns in pairs:
            drawn = smoothed(columns, self.smooth) if rough else columns
            dash = palette.dash_of(self.app, line.index) + (2 if line.faint else 0)
            dots = stroke(scale.points(drawn), dash, drawn.bad | self._gaps(drawn))
            if line.index == self._chosen and len(self._lines) > 1 and not line.faint:
                dots = thick(dots, scale.dots)
            plot.paint(dots, _LINES + line.index % palette.HUES)

    def _gaps(self, columns: ColumnValues) -> frozenset[int]:
        """The columns to which no line is drawn, as too long before them nothing is known, or as
        another attempt begins there."""
        if self.axes.x_gap is None:
            return frozenset()
        x0, x1 = self._range
        each = len(columns.mean) / max(x1 - x0, 1e-9)
        begins = [round((m.x - x0) * each) for m in self.marks if m.kind == marking.BEGINS]
        seams = {column for at in begins for column in (at, at + 1)}
        stride = max((self._finest(line.series).stride for line in self._lines), default=1)
        apart = max(self.axes.x_gap, 2.0 * stride)
        return gaps(columns, int(apart * each) + 1) | seams

    def _mark_cut(self, plot: Canvas, columns: ColumnValues, scale: Scale, style: int) -> None:
        if scale.log or not self.robust:
            return
        for row, sign, cells in (
                (0, "▲", {x // 2 for x, v in enumerate(columns.hi) if v > scale.y1}),
                (plot.height - 1, "▼", {x // 2 for x, v in enumerate(columns.lo) if v < scale.y0})):
            self.is_cut = self.is_cut or bool(cells)
            for cell in cells:
                plot.text(cell, row, sign, style)

    def _paint_selection(self, plot: Canvas, x0: float, x1: float) -> None:
        if self.selection is None:
            return
        left, right = sorted(marking.cell_of(plot, x, x0, x1) for x in self.selection)
        for row in range(plot.height):
            for cell in range(left, right + 1):
                if plot.chars[row][cell] == " ":
                    plot.text(cell, row, "░", _FAINT)

    def _paint_cross(self, plot: Canvas, x0: float, x1: float) -> None:
        if self.cross is None or self.selection or not x0 <= self.cross <= x1:
            return
        cell = marking.cell_of(plot, self.cross, x0, x1)
        for row in range(plot.height):
            if plot.chars[row][cell] == " ":
                plot.text(cell, row, "│", _CROSS)
        rows = self.reading(plot.height)
        wide = max(map(len, rows), default=0)
        left = cell + 2 if cell < plot.width // 2 else cell - wide - 3
        left = min(max(left, 0), max(plot.width - wide - 2, 0))
        for y, row in enumerate(rows):
            plot.text(left, y, f" {row.ljust(wide)} ", _BOX)

    def reading(self, most: int = 99) -> list[str]:
        """The marks and the values at the reading line, in at most `most` rows of text."""
        if self.cross is None:
            return []
        x0, x1 = self._range
        cross, text = self.cross, self.axes.y_text
        rows = [f"{self.axes.x_name} {self.axes.x_text(cross)}"]
        rows += [f"{mark.kind} {mark.text}" for mark in
                 marking.near(self.marks, cross, (x1 - x0) / max(2 * self._cells, 1)) if mark.text]
        at = {line: self._finest(line.series).at(cross) for line in self._lines}
        main = [v for line, v in at.items() if v is not None and not line.faint]
        over = self._finest(self._all).at(cross) if self._all is not None else (
            min(v[0] for v in main), sum(v[1] for v in main) / len(main),
            max(v[2] for v in main)) if main and self._as_band() else None
        if len(self._lines) > 1 and over is not None:
            rows.append(f"mean {text(over[1])}")
            if len(self._lines) > OVERLAID:
                rows.append(f"least {text(over[0])}, most {text(over[2])}")
        # The chosen rank first: with many ranks there is no room for all of them.
        for line in sorted(self._lines, key=lambda x: x.index != self._chosen):
            value = at[line]
            rows.append(f"{line.label}  {text(value[1] if value else None)}")
        if len(rows) > most:
            rows = [*rows[:max(most - 1, 1)], f"… {len(rows) - most + 1} more"]
        return rows

    def _paint_steps(self, canvas: Canvas, gutter: int, x0: float, x1: float) -> None:
        cells = canvas.width - gutter
        wide = max(len(self.axes.x_text(int(x1))), 3) + 3
        free = gutter
        for value in self.axes.x_ticks(x0, x1, max(cells // wide, 2)):
            text = self.axes.x_text(int(value))
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
                # A blank looks alike in any style but the box's, and each change of style is sent.
                if x == canvas.width or (numbers[x] != numbers[begin] and (
                        chars[x] != " " or _BOX in (numbers[x], numbers[begin]))):
                    segments.append(Segment("".join(chars[begin:x]), styles[numbers[begin]]))
                    begin = x
            strips.append(Strip(segments, canvas.width))
        return strips

    def _find_styles(self) -> list[Style]:
        ground = self.rich_style
        named = ("axis", "faint", "mean", "bad", "cross", "box", "empty")
        own = [self.get_component_rich_style(f"curve--{n}") for n in named]
        return [ground, *own, *(ground + s for s in palette.strokes(self.app))]

    def _finest(self, series: Series) -> Series:
        """The series, or the one that has more of the part that is shown."""
        x0, x1 = self._range
        zoomed = self.zoomed
        if zoomed is None or not (self._window and zoomed.first <= x0 and x1 <= zoomed.last):
            return series
        return zoomed.series.get(id(series), series)

    def _extent(self) -> tuple[int, int]:
        starts = [x.series.start for x in self._lines if x.series.start is not None]
        ends = [x.series.last for x in self._lines if x.series.last is not None]
        return min(starts, default=0), max(ends, default=1)

    def _as_band(self) -> bool:
        many = sum(not line.faint for line in self._lines)
        if many < 2:
            return False
        return many > OVERLAID if self.banded is None else self.banded


Entry = tuple[str, str, int]
"""A sample of the stroke, a label, and the number of the stroke's style."""
GAP = 2


def legend(entries: Sequence[Entry], width: int) -> list[tuple[int, str, int]]:
    """(x, text, style) of one line of `width` cells; what has no room is counted: "… 5 more"."""
    shown = len(entries)
    while shown and _wide(entries[:shown]) + _rest(len(entries) - shown) > width:
        shown -= 1
    if not shown:
        return []
    found: list[tuple[int, str, int]] = []
    x = 0
    for sample, label, style in entries[:shown]:
        found += [(x, sample, style), (x + len(sample) + 1, label, 0)]
        x += len(sample) + 1 + len(label) + GAP
    if shown < len(entries):
        found.append((x, f"… {len(entries) - shown} more", 0))
    return found


def _wide(entries: Sequence[Entry]) -> int:
    return sum(len(sample) + 1 + len(label) + GAP for sample, label, _ in entries) - GAP


def _rest(many: int) -> int:
    return GAP + len(f"… {many} more") if many else 0
