"""An app whose text is legible in any theme, and which starts with the theme chosen last."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar

from gpu_engine.common import paths
from gpu_engine.common.files import write_json
from gpu_panel import readonly
from gpu_panel.common.textual_private import FailingApp
from gpu_panel.theme import THEMES, legible

if TYPE_CHECKING:
    from gpu_panel.terminal.driver import PanelDriver

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
        self.theme_variables = given | legible(given, dark=theme.dark, ansi=theme.ansi)
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
    where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(where, kept)
