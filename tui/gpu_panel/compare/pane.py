"""The base of the panes of the compare screen, and of its two tables."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.message import Message

from gpu_panel.charts import palette
from gpu_panel.charts.drawing import SAMPLES
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Part, Rows
from gpu_panel.compare.store import CompareStore


class ComparePane(Pane):
    """A pane of the compare screen, which paints what the store holds when the screen calls it."""

    @dataclass
    class RunChosen(Message):
        """The person has put the cursor on a run."""

        index: int

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        """Show what is known now. `chosen`: the index of the run under the cursor."""
        raise NotImplementedError


class CompareTable(Rows, ComparePane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """A table with more columns than may fit: the arrows move its columns."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.store: CompareStore | None = None
        self.first = 0
        """The first of the movable columns that is shown."""
        self.hidden = False

    def paint(self, store: CompareStore, chosen: int | None) -> None:
        self.store = store
        self.repaint()

    def action_aside(self, by: int) -> None:
        if by < 0 or self.hidden:
            self.first = max(0, self.first + by)
            self.repaint()

    def stroke(self, index: int) -> Part:
        """A piece of the line of the run at `index`, and a blank."""
        sample = SAMPLES[palette.dash_of(self.app, index) % len(SAMPLES)]
        return f"{sample} ", f"line{index}"

    def _style(self, name: str) -> Style:
        index = name.removeprefix("line")
        if name not in self._styles and index != name:
            self._styles[name] = palette.strokes(self.app)[int(index) % palette.HUES]
        return super()._style(name)
