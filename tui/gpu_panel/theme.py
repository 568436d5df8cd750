"""Legible colours for every theme, light and dark, and two themes for people with any kind of
colour blindness; the app that has them, and starts with the theme chosen last.

A theme names its colours, but not the backgrounds on which they are legible: dimmed text may
disappear on some of them, and the fill under the cursor may be as dark as the text on it. So text
colours and their backgrounds are computed once for each theme: a text colour is moved towards
black or white until its contrast is at least `LEAST` on every background that it is used on.

Contrast is that of WCAG 2: (L1 + 0.05) / (L2 + 0.05), L1 and L2 the relative luminances.

A terminal of 256 colours (`few`) has no dark ones but its grays and some very strong ones, such as
navy. There the grounds are gray, and a text's contrast is that of the colours it gets there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar

from rich.color import ColorSystem
from textual.color import BLACK, WHITE, Color
from textual.theme import Theme

from gpu_engine.common import paths
from gpu_engine.common.files import write_json
from gpu_panel import readonly
from gpu_panel.textual_private import FailingApp

if TYPE_CHECKING:
    from gpu_panel.terminal.driver import PanelDriver

LEAST = 4.5
"""The contrast that WCAG 2.2 demands of text (1.4.3, AA)."""
FIELD = 1.15
"""That of the ground of a field with what is around it: visible, and quiet."""
GRAPHIC = 3.0
"""The contrast that it demands of lines and marks (1.4.11)."""
_MARGIN = 0.1
"""Added to every wanted contrast, as colours are rounded to 8 bits afterwards."""
_NAMES = ("primary", "secondary", "warning", "error", "success", "accent")


def legible(given: Mapping[str, str], *, dark: bool, ansi: bool, few: bool = False
            ) -> dict[str, str]:
    """CSS variables that replace or extend those of a theme (`given`). Ours are:

    `cursor`, `cursor-blurred`: background of the row under the cursor; `cursor-style`: its text
    style. `field`, `field-style`: the same of a field to type in. `faint`: lines that are not text.
    `frame`, `frame-focus`: borders.
    """
    return _of_terminal(dark) if ansi else _of_theme(given, dark, few)


def contrast(one: Color, other: Color) -> float:
    """The contrast of two colours, from 1 (equal) to 21 (black and white)."""
    a, b = sorted((_luminance(one), _luminance(other)))
    return (b + 0.05) / (a + 0.05)


def _luminance(color: Color) -> float:
    r, g, b = ((v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
               for v in color.normalized)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _of_theme(given: Mapping[str, str], dark: bool, few: bool) -> dict[str, str]:
    def ground(color: Color) -> Color:
        return color.monochrome if few else color

    background, surface, panel = (ground(_opaque(given[n]))
                                  for n in ("background", "surface", "panel"))
    primary = _opaque(given["primary"])
    ink = _opaque(given["foreground"])
    far = WHITE if dark else BLACK
    # The hue of the theme, but quiet: text of every colour stands on it.
    cursor = ground(background.blend(apart(primary, (background,), far, GRAPHIC, few), 0.18))
    blurred = background.blend(ink, 0.1)
    boost = Color.parse(given["boost"])
    field = ground(apart(background, (background, surface), ink, FIELD, few))
    # All that text is ever drawn on, so that one colour of text does for all of them.
    grounds = (background, surface, panel, cursor, blurred, field, background + boost,
               surface + boost, _opaque(given.get("surface-active", given["surface"])))
    fills = {f"{name}-muted": ground(background.blend(_opaque(given[name]), 0.18))
             for name in _NAMES}
    ink = apart(ink, (*grounds, *fills.values()), far, LEAST, few)
    out = {"background": background, "surface": surface, "panel": panel,
           "foreground": ink, "field": field, "cursor": cursor, "cursor-blurred": blurred,
           "faint": apart(background.blend(ink, 0.3), (background, surface, cursor), far, GRAPHIC,
                          few),
           "frame": background.blend(ink, 0.35),
           "text-muted": apart(background.blend(ink, 0.6), (*grounds, *fills.values()), far,
                               LEAST, few), **fills}
    # Pushed apart from nine grounds, quiet text may come out louder than the usual one.
    if contrast(out["text-muted"], background) > contrast(ink, background):
        out["text-muted"] = ink
    for name in _NAMES:
        out[f"text-{name}"] = apart(_opaque(given[name]), (*grounds, fills[f"{name}-muted"]), far,
                                    LEAST, few)
    # Textual has names of its own for what is the same with us.
    out |= {"frame-focus": out["text-primary"], "text-disabled": out["text-muted"],
            "block-cursor-background": cursor, "block-cursor-foreground": ink,
            "block-cursor-blurred-background": blurred, "block-cursor-blurred-foreground": ink,
            "block-hover-background": blurred,
            "footer-background": panel, "footer-foreground": ink, "footer-item-background": panel,
            "footer-key-foreground": out["text-primary"], "footer-key-background": panel,
            "footer-description-foreground": ink, "footer-description-background": panel,
            "button-foreground": ink,
            "scrollbar": out["frame"], "scrollbar-hover": out["faint"],
            "scrollbar-active": out["text-primary"], "scrollbar-background": background,
            "scrollbar-background-hover": background, "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
            "input-selection-background": cursor, "input-selection-foreground": ink}
    return {name: color.hex for name, color in out.items()} \
        | {"cursor-style": "none", "field-style": "none"}


def _of_terminal(dark: bool) -> dict[str, str]:
    """Variables in the terminal's own sixteen colours. How they look is unknown, so these are the
    ones that contrast with a dark or a light background in nearly every terminal, without fills,
    with the cursor's row reversed and fields underlined. (In xterm, green on white has 2.1 : 1 and
    blue on black 2.2 : 1.)"""
    primary, warning, error, success = (
        ("ansi_cyan", "ansi_yellow", "ansi_bright_red", "ansi_green") if dark else
        ("ansi_blue", "ansi_magenta", "ansi_red", "ansi_blue"))
    named = {"primary": primary, "secondary": primary, "accent": primary, "warning": warning,
             "error": error, "success": success}
    plain = "ansi_default"
    out = {f"text-{name}": color for name, color in named.items()}
    out |= named  # Textual's buttons use the names without "text-"
    out |= {f"{name}-muted": plain for name in named}
    return out | {
        "text-muted": plain, "text-disabled": plain, "cursor": plain, "cursor-blurred": plain,
        "cursor-style": "reverse", "field": plain, "field-style": "underline",
        "faint": plain, "frame": plain, "frame-focus": primary,
        "footer-key-foreground": primary,
        "block-cursor-background": plain, "block-cursor-foreground": plain,
        "block-cursor-text-style": "reverse", "input-selection-background": plain,
        "input-selection-foreground": plain}


def apart(color: Color, grounds: Iterable[Color], far: Color, least: float, few: bool) -> Color:
    """`color`, moved towards `far` only as far as needed for a contrast of `least` on all
    `grounds`; `far` itself if no mixture reaches it."""
    seen = _of_256 if few else lambda color: color
    behind = [seen(ground) for ground in grounds]
    for step in range(41):
        moved = color.blend(far, step / 40)
        if all(contrast(seen(moved), ground) >= least + _MARGIN for ground in behind):
            return moved
    return far


def _of_256(color: Color) -> Color:
    """What is shown of a colour where there are 256."""
    return Color(*color.rich_color.downgrade(ColorSystem.EIGHT_BIT).get_truecolor())


def _opaque(text: str) -> Color:
    return Color.parse(text).with_alpha(1.0)


ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

LINES = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION, BLUE)
"""For the lines of ranks; an eighth is black or white."""

DARK = Theme(name="colour-blind", primary=SKY, secondary=BLUE, accent=PURPLE, warning=YELLOW,
             error=VERMILLION, success=GREEN, foreground="#e8e8e8", background="#111418",
             surface="#191d22", panel="#22272e", dark=True)
# On a light background orange and vermillion have to be so dark that nobody can tell them apart.
LIGHT = Theme(name="colour-blind-light", primary=GREEN, secondary=SKY, accent=YELLOW,
              warning=PURPLE, error=VERMILLION, success=BLUE, foreground="#1c1f23",
              background="#fafafa", surface="#f0f0f0", panel="#e6e6e6", dark=False)
THEMES = (DARK, LIGHT)


# --- the app in a theme, and what is kept of the person's choices ---------------------------------

SHEET = Path(__file__).with_name("panel.tcss")
"""The styles that all screens share."""


class ThemedApp(FailingApp):
    """Base of every app that shows our widgets, as they need the colours of theme.py."""

    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [SHEET]

    terminal: PanelDriver | None = None
    """The way to the terminal; None where another driver is in use."""

    def __init__(self) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)

    def get_css_variables(self) -> dict[str, str]:
        given, theme = super().get_css_variables(), self.current_theme
        self.theme_variables = given | legible(given, dark=theme.dark, ansi=theme.ansi,
                                               few=self.console.color_system == "256")
        return self.theme_variables

    def begin_with_theme(self, wanted: str | None = None, *, light: bool = False) -> None:
        """Begin with the theme `wanted`, of settings.toml, else with the one that was chosen last,
        else, on a `light` background, with a light one. One that does not exist counts for nothing,
        and TEXTUAL_THEME outranks them all. Call this before the app runs."""
        if os.environ.get("TEXTUAL_THEME"):
            return
        for chosen in (wanted, read().get("theme") if wanted is None else None):
            if isinstance(chosen, str) and chosen in self.available_themes:
                self.theme = chosen
                return
        if light:
            self.theme = "textual-light"

    def keep_theme(self) -> None:
        """Save the current theme for the next start. Raises OSError."""
        keep("theme", lambda: self.theme)


def is_chosen(wanted: str | None) -> bool:
    """Whether `begin_with_theme` will find a theme that somebody chose, so that the terminal's
    background does not matter."""
    return bool(os.environ.get("TEXTUAL_THEME")) or wanted not in (None, "auto") \
        or (wanted is None and isinstance(read().get("theme"), str))


def path() -> Path:
    """The file with the person's choices in the panel."""
    return paths.home() / "panel.json"


def read() -> dict[str, object]:
    """The saved choices; empty if they can't be read."""
    try:
        kept = json.loads(path().read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def keep(name: str, value: Callable[[], object]) -> None:
    """Save a choice beside the others. `value` is asked right before, so that of two threads that
    save the same, the last one saves what is chosen by then. Raises OSError."""
    with _writing:
        write(read() | {name: value()})


_writing = threading.Lock()


def write(kept: dict[str, object]) -> None:
    """Save `kept` in place of the earlier choices. Raises OSError."""
    if readonly.on:
        return
    where = path()
    paths.private_folder(where.parent)
    write_json(where, kept)
