"""All devices in one line, a cell for each, for a screen on which another pane is in front."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_panel.common.rows import Line, Row
from gpu_panel.launch.devices.shades import ShadedRows


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
