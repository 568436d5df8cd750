"""The colours of ranks and runs: told apart, and none that means trouble."""

from __future__ import annotations

from itertools import pairwise

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from gpu_panel.charts import palette
from gpu_panel.themed import ThemedApp

from ..colours import contrast

TROUBLE = {"red", "yellow", "bright_red", "bright_yellow"}


@pytest.mark.parametrize("name", sorted(BUILTIN_THEMES))
async def test_no_rank_has_the_colour_of_trouble(name: str) -> None:
    app = ThemedApp()
    async with app.run_test():
        app.theme = name
        each = [style.color for style in palette.strokes(app)]
        assert len(set(each)) == palette.HUES
        if app.native_ansi_color:
            assert not {colour.name for colour in each if colour} & TROUBLE
            return
        shown = [Color.from_rich_color(colour) for colour in each]
        hues = [colour.hsl.h * 360 for colour in shown]
        assert all(60 <= hue <= 340 for hue in hues)
        assert all(min(abs(a - b), 360 - abs(a - b)) >= 60 for a, b in pairwise(hues))
        ground = Color.parse(app.theme_variables["background"])
        assert all(contrast(colour, ground) >= 3.0 for colour in shown)
