"""Rows whose graphs of load are brighter the busier a device is. See `graphs`."""

from __future__ import annotations

import re

from rich.style import Style

from gpu_panel.charts import palette
from gpu_panel.common import load
from gpu_panel.common.rows import Rows

_NAMES = re.compile(rf"({'|'.join(load.LEVELS)})([0-9]+)")


class ShadedRows(Rows):
    """Knows the styles that `graphs.style` names: a level of load, and the number of a hue; 0 is
    that of text."""

    def _style(self, name: str) -> Style:
        if name not in self._styles and (found := _NAMES.fullmatch(name)):
            level, hue = found[1], int(found[2])
            tones = palette.tones(self.app, palette.strokes(self.app)[(hue - 1) % palette.HUES]
                                  if hue else None)
            self._styles[name] = tones[load.LEVELS.index(level)]
        return super()._style(name)
