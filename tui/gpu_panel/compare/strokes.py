"""How a run's line looks in the tables beside the chart."""

from __future__ import annotations

from rich.style import Style
from textual.app import App

from gpu_panel.charts import palette
from gpu_panel.charts.drawing import SAMPLES

PREFIX = "line"
"""`PREFIX` and a run's index is the name of its style in the tables."""


def sample(app: App[object], index: int) -> str:
    """A piece of the line of the run at `index`."""
    return SAMPLES[palette.dash_of(app, index) % len(SAMPLES)]


def style(app: App[object], name: str) -> Style | None:
    """The style of that name; None if it is not a line's."""
    digits = name.removeprefix(PREFIX)
    if digits == name or not digits.isdecimal():
        return None
    return palette.strokes(app)[int(digits) % palette.HUES]
