"""Rows whose graphs of load are brighter the busier a device is (see `graphs`), and all devices in
one line of them, for a screen on which another pane is in front."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.style import Style

from gpu_panel.charts import palette
from gpu_panel.common import load
from gpu_panel.common.rows import Line, Row, Rows

_NAMES = re.compile(rf"({'|'.join(load.LEVELS)})([0-9]+)")


class ShadedRows(Rows):
    """Knows the styles that `graphs.style` names: a level of load and a hue, 0 for that of text."""

    def _style(self, name: str) -> Style:
        if name not in self._styles and (found := _NAMES.fullmatch(name)):
            level, hue = found[1], int(found[2])
            tones = palette.tones(self.app, palette.strokes(self.app)[(hue - 1) % palette.HUES]
                                  if hue else None)
            self._styles[name] = tones[load.LEVELS.index(level)]
        return super()._style(name)


class DeviceStrip(ShadedRows, can_focus=False):
    """Shows what `lines.strip` makes of the devices."""

    DEFAULT_CSS = "DeviceStrip { width: 0; height: 1; overflow: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self._line: Line = ()

    def show(self, line: Line, most: int) -> None:
        """Show this in at most so many cells."""
        if line != self._line:
            self._line = line
            self.styles.width = min(sum(len(text) for text, _ in line), max(most, 0))
            self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, [Row("", (self._line,))]
