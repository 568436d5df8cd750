"""The strokes that tell ranks apart: eight hues that suit the theme, then other dashes."""

from __future__ import annotations

from functools import cache

from rich.style import Style
from textual.app import App
from textual.color import BLACK, WHITE, Color

from gpu_panel.theme import GRAPHIC, LINES, THEMES, apart

HUES = 8
_RING = (75, 190, 290, 115, 220, 325, 155, 255)
"""Hues in degrees, far from those beside them. Red and amber are left to trouble."""
_SATURATION = 0.6, 0.75
"""The second one with 256 colours, of which two hues would be the same."""
_ON_DARK = ("cyan", "magenta", "green", "bright_blue", "white", "bright_magenta", "bright_cyan",
            "bright_green")
_ON_LIGHT = ("blue", "magenta", "green", "black", "cyan", "bright_magenta", "bright_blue",
             "bright_black")


def strokes(app: App[object]) -> list[Style]:
    """Eight line styles that suit the theme; the first is the nearest to its primary colour."""
    if _is_of_terminal(app):
        return [Style(color=n) for n in (_ON_DARK if app.current_theme.dark else _ON_LIGHT)]
    given = app.theme_variables
    return _strokes(given["primary"], given["background"], _is_for_colour_blind(app),
                    app.console.color_system == "256")


@cache
def _strokes(primary: str, ground: str, colour_blind: bool, few: bool) -> list[Style]:
    background = Color.parse(ground)
    light = background.brightness > 0.5
    far = BLACK if light else WHITE
    if colour_blind:
        every = [apart(Color.parse(c), (background,), far, GRAPHIC, few) for c in LINES]
        return [Style(color=c.rich_color) for c in (*every, far)]
    near = [abs((hue / 360 - Color.parse(primary).hsl.h + 0.5) % 1.0 - 0.5) for hue in _RING]
    first = near.index(min(near))
    wanted = [Color.from_hsl(hue / 360, _SATURATION[few], 0.36 if light else 0.66)
              for hue in (*_RING[first:], *_RING[:first])]
    return [Style(color=apart(c, (background,), far, GRAPHIC, few).rich_color) for c in wanted]


def names(app: App[object]) -> list[str]:
    """The colours of the strokes, as a style of Textual names them."""
    colours = [stroke.color.name for stroke in strokes(app) if stroke.color is not None]
    return [f"ansi_{name}" if _is_of_terminal(app) else name for name in colours]


def dash_of(app: App[object], index: int) -> int:
    """The dash of the rank at `index`: a different one for each rank if colours are not to be
    relied on, else a different one for each eight ranks."""
    return index if app.no_color or _is_for_colour_blind(app) else index // HUES


def _is_for_colour_blind(app: App[object]) -> bool:
    return app.theme in {theme.name for theme in THEMES}


def _is_of_terminal(app: App[object]) -> bool:
    """Whether the theme has the terminal's own colours, of which it is not known how they look."""
    return app.current_theme.ansi or app.native_ansi_color
