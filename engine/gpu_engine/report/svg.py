"""Curves as SVG: axes with round numbers, the range of each part of a curve, and its mean. Pure.

Lines differ by dash and by a letter at their end, not only by colour. An SVG has no script, no
reference to anything outside, and no style attributes, so a page may forbid all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series
from gpu_engine.common.ticks import step_ticks, tick_labels, ticks

WIDTH, HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 34, 34, 46
_DECADES = 3.0
"""A curve of positive values over so many powers of ten has a logarithmic axis."""
_MOST_POINTS = 40
"""Up to so many values, each is marked."""
_GIB = float(units.GIB)

_LIGHT = ("#1d2430", "#cfd5de", "#ffffff", "#0b5fb0", "#a94300", "#0a6b48", "#8a2f86", "#6b5900",
          "#b3202e", "#3f4a9e", "#4a5563")
_DARK = ("#e4e8ee", "#3a4350", "#14181f", "#6db3ff", "#ffb070", "#5fd3a4", "#e59be0", "#dcc75a",
         "#ff8f95", "#a9b3ff", "#b6c0cc")
"""Text and axes, grid, ground, and eight lines; a line has a contrast of 4.5 with its ground."""


def _colours(ink: str, faint: str, ground: str, *lines: str) -> str:
    """Rules without variables, which few programs but browsers know."""
    return "\n".join([
        f".chart .ground {{ fill: {ground}; }}", f".chart text {{ fill: {ink}; }}",
        f".chart .grid {{ stroke: {faint}; }}",
        f".chart .axis {{ stroke: {ink}; }}",
        *(f".chart .c{i} {{ fill: {one}; }}\n.chart .line.c{i} {{ fill: none; stroke: {one}; }}"
          for i, one in enumerate(lines))])


STYLE = f"""\
.chart text {{ font: 12px system-ui, sans-serif; }}
.chart .title {{ font-weight: 600; font-size: 14px; }}
.chart .end {{ text-anchor: end; }}
.chart .middle {{ text-anchor: middle; }}
.chart .grid, .chart .axis {{ fill: none; }}
.chart .line {{ stroke-width: 1.8; }}
.chart .band {{ fill-opacity: 0.22; }}
.chart .d1 {{ stroke-dasharray: 7 3; }}
.chart .d2 {{ stroke-dasharray: 2 3; }}
.chart .d3 {{ stroke-dasharray: 9 3 2 3; }}
{_colours(*_LIGHT)}
@media (prefers-color-scheme: dark) {{
{_colours(*_DARK)}
}}
"""
"""The style sheet of all charts, light and dark."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    series: Series


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves of one value over the steps."""

    title: str
    lines: Sequence[Line]
    unit: str = ""
    """"bytes": numbers are shown in GiB, from 0 on."""

    @property
    def empty(self) -> bool:
        """Whether there is no finite value to draw."""
        return all(_bounds(line.series) is None for line in self.lines)


def draw(chart: Chart) -> str:
    """The chart as an `svg` element. There must be something to draw."""
    bounds = [b for b in (_bounds(line.series) for line in chart.lines) if b is not None]
    x0, x1 = min(b[0] for b in bounds), max(b[1] for b in bounds)
    axis = _Axis.of(min(b[2] for b in bounds), max(b[3] for b in bounds), chart.unit)
    across = _Across(x0, x1 if x1 > x0 else x0 + 1)
    out = ['<svg class="chart" role="img" xmlns="http://www.w3.org/2000/svg" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}">', f"<title>{_text(chart.title)}</title>"]
    out.append(f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>')
    unit = " (GiB)" if chart.unit == "bytes" else ""
    scale = ", logarithmic" if axis.log else ""
    out.append(_label(_LEFT, 20, chart.title + unit + scale, "title"))
    out += _grid(axis, across)
    for index, line in enumerate(chart.lines):
        if _bounds(line.series) is not None:
            out += _curve(line.series, axis, across, index, len(chart.lines) > 1)
    return "\n".join([*out, "</svg>"])


def letter(index: int) -> str:
    """The letter at the end of the line `index`: A, B, …, Z, A2."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


@dataclass(frozen=True, slots=True)
class _Across:
    x0: float
    x1: float

    def __call__(self, x: float) -> float:
        return _LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - _LEFT - _RIGHT)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The axis of values. With `log`, y0 and y1 are decimal logarithms."""

    y0: float
    y1: float
    log: bool
    unit: float

    @classmethod
    def of(cls, low: float, high: float, unit: str) -> _Axis:
        low, high = max(low, -1e300), min(high, 1e300)
        if unit == "bytes":
            return cls(0.0, high * 1.08 or _GIB, False, _GIB)
        if low > 0 and log10(high) - log10(low) >= _DECADES:
            return cls(log10(low), log10(high), True, 1.0)
        if high - low <= abs(high + low) / 2 * 1e-6:
            room = abs(high) * 0.05 or 1.0
            return cls(low - room, high + room, False, 1.0)
        room = (high - low) * 0.04
        return cls(low if low == 0 else low - room, high + room, False, 1.0)

    def __call__(self, y: float) -> float:
        if self.log:
            y = log10(y) if y > 0 else self.y0
        share = (min(max(y, self.y0), self.y1) - self.y0) / (self.y1 - self.y0)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[float]:
        if self.log:
            return [10.0 ** e for e in range(floor(self.y0 + 1 - 1e-9), floor(self.y1 + 1e-9) + 1)]
        return ticks(self.y0 / self.unit, self.y1 / self.unit, 6)


def _grid(axis: _Axis, across: _Across) -> list[str]:
    out = []
    values = axis.ticks()
    for value, text in zip(values, tick_labels(values), strict=True):
        y = axis(value * axis.unit)
        out.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        out.append(_label(_LEFT - 8, y + 4, text, "end"))
    for step in step_ticks(across.x0, across.x1, 7):
        x = across(step)
        out.append(f'<path class="axis" d="M{x:.1f} {HEIGHT - _BOTTOM}v5"/>')
        out.append(_label(x, HEIGHT - _BOTTOM + 19, f"{step:,.0f}", "middle"))
    out.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}"/>')
    out.append(_label((WIDTH + _LEFT - _RIGHT) / 2, HEIGHT - 8, "step", "middle"))
    return out


def _curve(series: Series, axis: _Axis, across: _Across, index: int, several: bool) -> list[str]:
    stride = series.stride
    points: list[tuple[float, float, float, float]] = []
    for i in range(len(series)):
        if series.count[i]:
            x = min((series.first + i) * stride + (stride - 1) / 2, across.x1)
            points.append((across(max(x, across.x0)), axis(series.total[i] / series.count[i]),
                           axis(series.lo[i]), axis(series.hi[i])))
    colour, dash = f"c{index % 8}", f"d{index // 8 % 4 if index >= 8 else index % 4}"
    out = []
    if any(abs(lo - hi) > 0.5 for _, _, lo, hi in points):
        upper = "L".join(f"{x:.1f} {hi:.1f}" for x, _, _, hi in points)
        lower = "L".join(f"{x:.1f} {lo:.1f}" for x, _, lo, _ in reversed(points))
        out.append(f'<path class="band {colour}" d="M{upper}L{lower}Z"/>')
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in points)
    out.append(f'<path class="line {colour} {dash}" d="M{path}"/>')
    if len(points) <= _MOST_POINTS:
        out += [f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
                for x, y, _, _ in points]
    if several:
        x, y = points[-1][:2]
        out.append(_label(x + 6, y + 4, letter(index)))
    return out


def _bounds(series: Series) -> tuple[float, float, float, float] | None:
    """(first step, last step, least, greatest value) of what is finite; None if nothing is."""
    known = [i for i in range(len(series)) if series.count[i]]
    if not known or series.last is None:
        return None
    x0 = (series.first + known[0]) * series.stride
    x1 = min((series.first + known[-1] + 1) * series.stride - 1, series.last)
    low, high = min(series.lo[i] for i in known), max(series.hi[i] for i in known)
    return (x0, max(x1, x0), low, high) if isfinite(low) and isfinite(high) else None


def _label(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{_text(text)}</text>'


def _text(text: str) -> str:
    return escape(clean(text))
