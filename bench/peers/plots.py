"""Plots as SVG, made of nothing but text. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569", "#db2777")
_FONT = "font-family='sans-serif' font-size='12' fill='#1f2937'"


def bars(title: str, rows: Sequence[tuple[str, float, float, float]], unit: str) -> str:
    """A bar for each (name, median, low, high), in the order given, with a line from low to high.
    What begins with "gpu-panel" has a colour of its own."""
    width, left, step = 720, 230, 24
    height = 50 + step * len(rows)
    most = max((high for _, _, _, high in rows), default=1.0) or 1.0
    scale = (width - left - 110) / most
    out = [_head(width, height, title)]
    for i, (name, median, low, high) in enumerate(rows):
        y = 36 + i * step
        colour = COLOURS[0] if name.startswith("gpu-panel") else "#94a3b8"
        out += [f"<text x='{left - 8}' y='{y + 13}' text-anchor='end' {_FONT}>"
                f"{escape(name)}</text>",
                f"<rect x='{left}' y='{y}' width='{median * scale:.1f}' height='17' "
                f"fill='{colour}'/>",
                f"<line x1='{left + low * scale:.1f}' y1='{y + 8.5}' "
                f"x2='{left + high * scale:.1f}' y2='{y + 8.5}' stroke='#1f2937'/>",
                f"<text x='{left + high * scale + 6:.1f}' y='{y + 13}' {_FONT}>"
                f"{median:.3g} {escape(unit)}</text>"]
    return "\n".join([*out, "</svg>"]) + "\n"


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float, float, float]]],
          across: str, up: str) -> str:
    """A line for each name through its points (x, median, low, high), both axes logarithmic; a
    stroke at each point from low to high. All values are above 0."""
    width, height, left, right, top, bottom = 720, 340, 70, 180, 40, 290
    every = [point for points in series.values() for point in points]
    xs = _decades([x for x, _, _, _ in every])
    ys = _decades([v for _, _, low, high in every for v in (low, high)])

    def place(x: float, y: float) -> tuple[float, float]:
        return (left + (width - left - right) * _share(x, xs),
                bottom - (bottom - top) * _share(y, ys))

    out = [_head(width, height, title)]
    for power in range(xs[0], xs[1] + 1):
        x, _ = place(10.0 ** power, 10.0 ** ys[0])
        out += [f"<line x1='{x:.1f}' y1='{top}' x2='{x:.1f}' y2='{bottom}' stroke='#e5e7eb'/>",
                f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle' {_FONT}>"
                f"{_power(power)}</text>"]
    for power in range(ys[0], ys[1] + 1):
        _, y = place(10.0 ** xs[0], 10.0 ** power)
        out += [f"<line x1='{left}' y1='{y:.1f}' x2='{width - right}' y2='{y:.1f}' "
                "stroke='#e5e7eb'/>",
                f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end' {_FONT}>"
                f"{_power(power)}</text>"]
    out += [f"<text x='{(left + width - right) / 2}' y='{height - 12}' text-anchor='middle' "
            f"{_FONT}>{escape(across)}</text>",
            f"<text x='{left}' y='{top - 8}' text-anchor='end' {_FONT}>{escape(up)}</text>"]
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        placed = [place(x, median) for x, median, _, _ in points]
        out.append(f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in placed)}' "
                   f"fill='none' stroke='{colour}' stroke-width='2'/>")
        for (x, y), (at, _, low, high) in zip(placed, points, strict=True):
            out += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>",
                    f"<line x1='{x:.1f}' y1='{place(at, low)[1]:.1f}' x2='{x:.1f}' "
                    f"y2='{place(at, high)[1]:.1f}' stroke='{colour}'/>"]
        y = top + 14 + 18 * i
        out += [f"<rect x='{width - right + 14}' y='{y - 9}' width='12' height='4' "
                f"fill='{colour}'/>",
                f"<text x='{width - right + 32}' y='{y}' {_FONT}>{escape(name)}</text>"]
    return "\n".join([*out, "</svg>"]) + "\n"


def _head(width: int, height: int, title: str) -> str:
    return (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
            f"width='{width}' height='{height}' role='img' aria-label='{escape(title)}'>\n"
            f"<rect width='{width}' height='{height}' fill='#ffffff'/>\n"
            f"<text x='12' y='20' font-weight='bold' {_FONT}>{escape(title)}</text>")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten that hold all values between them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _share(value: float, decades: tuple[int, int]) -> float:
    return (math.log10(value) - decades[0]) / (decades[1] - decades[0])


def _power(power: int) -> str:
    return f"{10.0 ** power:,.0f}" if power >= 0 else f"{10.0 ** power:g}"
