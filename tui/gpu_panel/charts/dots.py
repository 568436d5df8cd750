"""A chart of dots: one value against another, such as a learning rate and the loss it led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from gpu_engine.common.ticks import tick_labels
from gpu_panel.charts.axes import ColumnValues, scale_of
from gpu_panel.charts.braille import Canvas
from gpu_panel.common import units

_DECADE = 10.0
"""From this ratio of the greatest to the least value on, an axis is logarithmic."""
_NONE, _AXIS, _DOT, _BEST = range(4)


@dataclass(frozen=True, slots=True)
class Dot:
    x: str
    """As a person has typed it: a number, or a word."""
    y: float
    best: bool = False
    partial: bool = False
    """Whether its y may still change."""


def places(xs: Sequence[str]) -> dict[str, float]:
    """Each different x → its place from 0 to 1: numbers in proportion, or by their logarithms if
    they are far apart; if any is a word, all at the same distance, in their order."""
    known = list(dict.fromkeys(xs))
    numbers = [_number(x) for x in known]
    if None in numbers:
        at: list[float] = [float(i) for i in range(len(known))]
    else:
        at = [v for v in numbers if v is not None]
        if at and min(at) > 0 and max(at) >= _DECADE * min(at):
            at = [log10(v) for v in at]
    low, span = min(at, default=0.0), max(at, default=0.0) - min(at, default=0.0)
    return {x: (v - low) / span if span else 0.5 for x, v in zip(known, at, strict=True)}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


class DotsView(Widget):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"dots--axis", "dots--dot", "dots--best"}
    DEFAULT_CSS = """
    DotsView {
        .dots--axis { color: $text-muted; }
        .dots--dot { color: $text-primary; }
        .dots--best { color: $text-success; text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.dots: tuple[Dot, ...] = ()
        self._canvas: Canvas | None = None

    def show(self, title: str, dots: Sequence[Dot]) -> None:
        """Show these dots; those with a y that is not finite are left out."""
        found = tuple(dot for dot in dots if isfinite(dot.y))
        if found != self.dots or self.border_title != title:
            self.border_title, self.dots, self._canvas = Content(title), found, None
            self.refresh()

    def render_line(self, y: int) -> Strip:
        canvas = self._canvas
        if canvas is None or (canvas.width, canvas.height) != self.size:
            canvas = self._canvas = self._painted(*self.size)
        ground = self.rich_style
        styles: list[Style] = [ground, *(ground + self.get_component_rich_style(f"dots--{name}")
                                         for name in ("axis", "dot", "best"))]
        return Strip([Segment(char, styles[style]) for char, style
                      in zip(canvas.chars[y], canvas.styles[y], strict=True)]).simplify()

    def _painted(self, width: int, height: int) -> Canvas:
        canvas = Canvas(width, height)
        ys = [dot.y for dot in self.dots]
        log = min(ys, default=0.0) > 0 and max(ys) >= _DECADE * min(ys)
        scale = scale_of([ColumnValues(ys, ys, list(ys), frozenset())], max(height - 1, 1), log=log)
        if scale is None or height < 3:
            text = "no value yet"
            canvas.text(max((width - len(text)) // 2, 0), height // 2, text, _AXIS)
            return canvas
        values = scale.ticks(max(height // 3, 2))
        labels = tick_labels(values)
        gutter = max(map(len, labels), default=0) + 1
        cells = max(width - gutter - 1, 1)
        for value, label in zip(values, labels, strict=True):
            canvas.text(gutter - 1 - len(label), height - 2 - scale.dot(value), label, _AXIS)
        at = {x: gutter + round(share * (cells - 1)) for x, share in
              places([dot.x for dot in sorted(self.dots, key=_by_x)]).items()}
        for dot in sorted(self.dots, key=lambda dot: dot.best):
            canvas.text(at[dot.x], height - 2 - scale.dot(dot.y), "○" if dot.partial else "●",
                        _BEST if dot.best else _DOT)
        free = 0
        for x, cell in sorted(at.items(), key=lambda pair: pair[1]):
            left = max(min(cell - len(x) // 2, width - len(x)), 0)
            if left >= free:
                canvas.text(left, height - 1, x, _AXIS)
                free = left + len(x) + 1
        best = next((dot for dot in self.dots if dot.best), None)
        if best is not None:
            self._write(canvas, at[best.x], height - 2 - scale.dot(best.y), units.loss(best.y))
        return canvas

    def _write(self, canvas: Canvas, x: int, y: int, text: str) -> None:
        for left in (x + 2, x - 1 - len(text)):
            if left >= 0 and left + len(text) <= canvas.width \
                    and all(c == " " for c in canvas.chars[y][left:left + len(text)]):
                canvas.text(left, y, text, _BEST)
                return


def _by_x(dot: Dot) -> float:
    """Words keep the order in which they came."""
    return _number(dot.x) or 0.0
