"""An app whose text can be read in any theme, and that begins with the theme chosen last."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath
from typing import Any, ClassVar

from textual.app import App

from gpu_engine.common import places
from gpu_engine.common.files import write_json
from gpu_panel.theme import legible

SHEET = Path(__file__).with_name("panel.tcss")
"""The styles that all screens share."""


class ThemedApp(App[None]):
    """Every widget of ours needs the colours of theme.py: whatever app shows one is of this."""

    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [SHEET]

    def get_css_variables(self) -> dict[str, str]:
        said, theme = super().get_css_variables(), self.current_theme
        self.theme_variables = said | legible(said, dark=theme.dark, ansi=theme.ansi)
        return self.theme_variables

    def begin_with_last_theme(self) -> None:
        """Take the theme that was chosen last, if it is still one; TEXTUAL_THEME goes first.
        To be called before the app runs."""
        chosen = read().get("theme")
        if isinstance(chosen, str) and chosen in self.available_themes \
                and not os.environ.get("TEXTUAL_THEME"):
            self.theme = chosen

    def keep_theme(self) -> None:
        """Begin with the present theme next time. Raises OSError where that can't be kept."""
        write(read() | {"theme": self.theme})


def path() -> Path:
    """Where the panel keeps what a person has chosen in it."""

    return places.home() / "panel.json"


def read() -> dict[str, Any]:
    """What was kept; nothing where that can't be read."""
    try:
        kept = json.loads(path().read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def write(kept: dict[str, Any]) -> None:
    """Keep these in place of what was kept. Raises OSError."""
    where = path()
    where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(where, kept)
