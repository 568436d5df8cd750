"""Draws the curves of all ranks in braille, without a plotting library.

Every column keeps its least and greatest value, so a spike of one step is visible at any zoom. A
value that is not finite breaks the line and is marked at the top edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from gpu_engine.common.series import Series
from gpu_engine.common.ticks import tick_labels
from gpu_panel.charts import marks as marking
from gpu_panel.charts.axes import (
    Axes,
    ColumnValues,
    Scale,
    capped,
    gaps,
    is_noisy,
    merged,
    odd_one,
    reduce,
    scale_of,
    settled,
    smoothed,
    spans_decade,
)
from gpu_panel.charts.braille import Canvas, Point, band, stroke, thick
from gpu_panel.charts.marks import Mark
from gpu_panel.common import palette
from gpu_panel.common.painting import refresh_changed

AXES = Axes()
_STYLES = ("axis", "faint", "mean", "bad", "cross", "box", "empty")
_NONE, _AXIS, _FAINT, _MEAN, _BAD, _CROSS, _BOX, _EMPTY, _LINES = range(9)
_ROUGH = 2.0
"""Dots from the least to the greatest value of a column, on average."""
_SMOOTH = 0.9
"""The strength of a smoothing that nobody has asked for."""
_MOST_COMPARED = 16
"""Lines among which the odd one is looked for."""
_FEW = 8
"""So few values are shown as points."""
_LEGEND_FROM = 8
"""From this height on, in cells, a chart with several lines has a legend."""
SAMPLES = ("━━", "╍╍", "┅┅", "╍┅", "┈┈")
"""How the dashes of `braille.DASHES` look in a legend."""
HOLLOW = "○"


def _is_rough(points: Sequence[Point | None]) -> bool:
    """Whether bars would hide the line: then their range is faint, and the line that of means."""
    high = [p[2] - p[0] for p in points if p is not None]
    return sum(high) > _ROUGH * len(high)


@dataclass(frozen=True, slots=True)
class Curve:
    index: int
    """The position of its rank among the ranks, which decides its colour and dash. The chosen
    one's line is thick and on top of the others'; in a band it is thin, below the mean's."""
    label: str
    series: Series
    faint: bool = False
    """Whether it belongs to another line, and is drawn with another dash."""
    loose: bool = False
    """Whether its values are no line: each is a hollow dot."""


class CurveDrawing(Widget):
    """A chart as it is drawn; what can be done with it is in `curves`."""

    LINES: ClassVar[str] = ""
    """What the lines are, if those that agree are drawn as one: "ranks"."""
    OVERLAID: ClassVar[int] = 16
    """With more lines than this, their range and mean are drawn instead of each."""
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"curve--{name}" for name in _STYLES}
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
        self.lines: list[Curve] = []
        self.marks: tuple[Mark, ...] = ()
        self.log_scale: bool | None = None
        """None: where it shows more, see `is_log`."""
        self.smooth: float | None = None
        """The strength; None: as strong as the noise demands, see `is_noisy`."""
        self.is_log = False
        """Whether the scale that was drawn last is logarithmic."""
        self.is_cut = False
        """Whether a curve that was drawn last begins above the scale."""
        self.is_smooth = False
        """Whether the curves that were drawn last were smoothed of themselves."""
        self.agree = 0
        """How many lines were drawn last as one, as they are the same but for a dot."""
        self.cross: int | None = None
        """Where the reading line is; None if it is hidden."""
        self.window: tuple[float, float] | None = None
        """The part of the x axis that is shown; None: all."""
        self._all: Series | None = None
        self._chosen: int | None = None
        self._range = (0.0, 1.0)
        self._cells, self._gutter = 1, 8
        """The width of the curves and of the numbers along the y axis, as drawn last: with a good
        guess, the series are reduced once and not twice."""
        self._frame: list[Strip] | None = None
        self._sent: dict[int, Strip] = {}

    def notify_style_update(self) -> None:
        self._frame = None
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
        self._range = x0, x1 = self.window or (first, max(last, first + 1))
        wide, high = canvas.width, canvas.height
        shown = [x for x in self.lines if x.index == self._chosen] if self.is_band else self.lines
        guess = max(wide - self._gutter, 1) * 2
        over_all, columns = self._reduced(shown, guess)
        below = 1 if high > 3 else 0
        entries = self._entries(shown)
        unit = self.axes.unit if high >= _LEGEND_FROM else ""
        above = 1 if unit or (high >= _LEGEND_FROM and len(entries) > 1) else 0
        plot_high = high - below - above
        every = [*columns, *([over_all] if over_all else [])]
        # Who zooms in there sees all of it.
        settles = self.axes.settles and self.window is None
        most = self.axes.most if self.window is None else inf
        seen = [settled(c) for c in every] if settles else every
        self.is_log = self.axes.may_be_log and spans_decade(
            [capped(c, most) for c in seen], self.is_log) \
            if self.log_scale is None else self.log_scale
        seen = [settled(c, log=self.is_log) for c in every] if settles else every
        self.is_cut = seen != every
        scale = scale_of([capped(c, most) for c in seen], plot_high * 4, log=self.is_log,
                         zero=self.axes.zero)
        if scale is None:
            text = "no finite value" if any(c.bad for c in every) else self.axes.empty
            canvas.text(max((wide - len(text)) // 2, 0), (high - 1) // 2, text, _EMPTY)
            return
        values = scale.ticks(max(plot_high // 3, 2), self.axes.y_unit)
        labels = [f"{v:g}" for v in values] if scale.log \
            else tick_labels([v / self.axes.y_unit for v in values])
        gutter = min(max(map(len, (*labels, unit)), default=0) + 1, max(wide - 4, 0))
        self._gutter, self._cells = gutter, max(wide - gutter, 1)
        if self._cells * 2 != guess:
            over_all, columns = self._reduced(shown, self._cells * 2)
        plot = Canvas(self._cells, plot_high)
        if over_all is not None:
            plot.paint(band(scale.points(over_all), self._gaps(over_all)), _FAINT)
        shown, columns = self._as_one(shown, columns, scale)
        strong = [line for line in self.lines if not line.faint]
        if self.is_band and self.LINES and len(strong) <= _MOST_COMPARED:
            each = [reduce(line.series, x0, x1, self._cells * 2) for line in strong]
            odd = odd_one([scale.points(c) for c in each])
            if odd is not None and strong[odd] not in shown:
                shown, columns = [*shown, strong[odd]], [*columns, each[odd]]
                entries = self._entries(shown)
        if self.agree:
            entries = self._entries(shown)
        # One strength for all that is drawn together, as a mean of many is calmer than each.
        strength = self._strength(columns if over_all is None else [over_all], scale)
        self._paint_lines(plot, shown, columns, scale, strength)
        if over_all is not None:
            # Even with strength 0 this makes a line out of the means. It is thick, on top: what
            # many ranks do together is what a person looks for first.
            mean = smoothed(over_all, strength)
            line = stroke(scale.points(mean), broken=mean.bad | self._gaps(mean))
            plot.paint(thick(line, scale.dots), _MEAN)
        for cell in {c // 2 for of in (*columns, over_all) if of for c in of.bad}:
            plot.text(cell, 0, "×", _BAD)
        marking.paint(plot, self.marks, x0, x1, _CROSS)
        self._paint_cross(plot, x0, x1)
        for row in range(plot_high):
            canvas.chars[above + row][gutter:] = plot.chars[row]
            canvas.styles[above + row][gutter:] = plot.styles[row]
        for value, label in zip(values, labels, strict=True):
            row = above + plot_high - 1 - scale.dot(value) // 4
            canvas.text(gutter - 1 - len(label), row, label, _AXIS)
        canvas.text(gutter - 1 - len(unit), 0, unit, _AXIS)
        if above and len(entries) > 1:
            legend(canvas, gutter, entries)
        if below:
            self._paint_steps(canvas, gutter, x0, x1)

    def _as_one(self, lines: Sequence[Curve], columns: list[ColumnValues], scale: Scale
                ) -> tuple[Sequence[Curve], list[ColumnValues]]:
        """The lines and columns that are drawn: of lines that are the same but for a dot, one."""
        full = [i for i, line in enumerate(lines) if not line.faint]
        every = [scale.points(columns[i]) for i in full]
        self.agree = len(full) if self.LINES and len(full) > 1 and all(
            abs(a[1] - b[1]) <= 1 for other in every[1:]
            for a, b in zip(every[0], other, strict=True) if a is not None and b is not None) \
            and all(columns[i].bad == columns[full[0]].bad for i in full) else 0
        if not self.agree:
            return lines, columns
        kept = next((i for i in full if lines[i].index == self._chosen), full[0])
        some = [i for i, line in enumerate(lines) if i == kept or line.faint]
        one = merged([columns[i] for i in full])  # a spike or the end of any of them is seen
        return [lines[i] for i in some], [one if i == kept else columns[i] for i in some]

    def _reduced(self, shown: Sequence[Curve], width: int,
                 ) -> tuple[ColumnValues | None, list[ColumnValues]]:
        """The band (None if none is drawn) and the lines that are drawn, in columns of dots."""
        def of(series: Series) -> ColumnValues:
            return reduce(series, *self._range, width)

        over_all = None
        if self.is_band:
            over_all = of(self._all) if self._all is not None else merged(
                [of(line.series) for line in self.lines if not line.faint])
        return over_all, [of(line.series) for line in shown]

    def _entries(self, shown: Sequence[Curve]) -> list[Entry]:
        entries: list[Entry] = []
        if self.is_band:
            many = sum(not line.faint for line in self.lines)
            entries = [("══", f"mean of {many}", _MEAN), ("⣿⣿", "range", _FAINT)]
        if faint := next((line for line in shown if line.faint), None):
            entries.append((SAMPLES[2], faint.label.rpartition(" ")[2], _AXIS))
        before = ""
        for line in shown:
            if not line.faint:
                kind, _, number = line.label.rpartition(" ")  # "rank 0", "1", "2": the word once
                dash = palette.dash_of(self.app, line.index) % len(SAMPLES)
                entries.append((HOLLOW if line.loose else SAMPLES[dash],
                                number if before == kind else line.label,
                                _LINES + line.index % palette.HUES))
                before = kind
        return entries

    def _paint_lines(self, plot: Canvas, lines: Sequence[Curve], found: list[ColumnValues],
                     scale: Scale, strength: float) -> None:
        pairs = sorted(zip(lines, found, strict=True), key=lambda p: p[0].index == self._chosen)
        rough = bool(strength) or any(_is_rough(scale.points(columns)) for _, columns in pairs)
        if rough and not self.is_band:  # the band is the range already
            for line, columns in pairs:  # of many lines only the chosen one's: they would hide all
                if len(pairs) <= 2 or line.index == self._chosen:
                    plot.paint(stroke(scale.points(columns), broken=columns.bad), _FAINT)
        for line, columns in pairs:
            drawn = smoothed(columns, strength) if rough else columns
            dash = palette.dash_of(self.app, line.index) + (2 if line.faint else 0)
            dots = stroke(scale.points(drawn), dash, drawn.bad | self._gaps(drawn))
            if line.index == self._chosen and len(self.lines) > 1 \
                    and not (line.faint or self.is_band):
                dots = thick(dots, scale.dots)
            style = _LINES + line.index % palette.HUES
            if not line.loose:
                plot.paint(dots, style)
            known = [(x, p[1]) for x, p in enumerate(scale.points(drawn)) if p is not None]
            for x, dot in known if line.loose or len(known) <= _FEW else ():
                plot.text(x // 2, plot.height - 1 - dot // 4, HOLLOW if line.loose else "●", style)

    def _strength(self, each: Sequence[ColumnValues], scale: Scale) -> float:
        """How strongly curves are smoothed."""
        if self.smooth is not None:
            return self.smooth
        self.is_smooth = any(is_noisy(scale.points(c), self.is_smooth) for c in each)
        return _SMOOTH if self.is_smooth else 0.0

    def _gaps(self, columns: ColumnValues) -> frozenset[int]:
        """The columns to which no line is drawn, as too long before them nothing is known, or as
        another attempt begins there."""
        if self.axes.x_gap is None:
            return frozenset()
        x0, x1 = self._range
        each = len(columns.mean) / max(x1 - x0, 1e-9)
        begins = [round((m.x - x0) * each) for m in self.marks if m.kind == marking.BEGINS]
        seams = {column for at in begins for column in (at, at + 1)}
        stride = max((line.series.stride for line in self.lines), default=1)
        apart = max(self.axes.x_gap, 2.0 * stride)
        return gaps(columns, int(apart * each) + 1) | seams

    def _paint_cross(self, plot: Canvas, x0: float, x1: float) -> None:
        if self.cross is None or not x0 <= self.cross <= x1:
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
        apart = (x1 - x0) / max(2 * self._cells, 1)
        rows += [f"{mark.kind} {mark.text}" for mark in self.marks
                 if mark.text and abs(mark.x - cross) <= apart]
        at = {line: line.series.at(cross) for line in self.lines}
        known = [v for line, v in at.items() if v is not None and not line.faint]
        if len(known) > 1:
            rows.append(f"mean {text(sum(v[1] for v in known) / len(known))}")
            if self.is_band:
                rows.append(f"least {text(min(v[0] for v in known))}, "
                            f"most {text(max(v[2] for v in known))}")
        # The chosen rank first: with many ranks there is no room for all of them.
        for line in sorted(self.lines, key=lambda x: x.index != self._chosen):
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
            left = min(max(gutter + cell - len(text) // 2, gutter), canvas.width - len(text))
            if left >= free:
                canvas.text(left, canvas.height - 1, text, _AXIS)
                free = left + len(text) + 1

    def _strips(self, canvas: Canvas) -> list[Strip]:
        ground = self.rich_style
        styles = [ground, *(self.get_component_rich_style(f"curve--{n}") for n in _STYLES),
                  *(ground + s for s in palette.strokes(self.app))]
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

    def _extent(self) -> tuple[int, int]:
        starts = [x.series.start for x in self.lines if x.series.start is not None]
        ends = [x.series.last for x in self.lines if x.series.last is not None]
        return min(starts, default=0), max(ends, default=1)

    @property
    def is_band(self) -> bool:
        """Whether the range and the mean of many lines are drawn in their place."""
        return sum(not line.faint for line in self.lines) > self.OVERLAID


Entry = tuple[str, str, int]
"""A sample of the stroke, a label, and the number of the stroke's style."""


def legend(canvas: Canvas, left: int, entries: Sequence[Entry]) -> None:
    """Write the legend into the first row; of what has no room, how much it is: "… 5 more"."""
    def wide(many: int) -> int:
        shown = sum(len(sample) + len(label) + 3 for sample, label, _ in entries[:many]) - 2
        return shown if many == len(entries) else shown + len(f"  … {len(entries) - many} more")

    most = next((n for n in range(len(entries), 0, -1) if wide(n) <= canvas.width - left), 0)
    for sample, label, style in entries[:most]:
        canvas.text(left, 0, sample, style)
        canvas.text(left + len(sample) + 1, 0, label, _AXIS)
        left += len(sample) + len(label) + 3
    if 0 < most < len(entries):
        canvas.text(left, 0, f"… {len(entries) - most} more", _AXIS)
