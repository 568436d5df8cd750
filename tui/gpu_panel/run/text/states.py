"""How the state of a run, an attempt or a rank looks: its glyph and its tone, told once."""

from __future__ import annotations

GLYPHS = {"queued": "◌", "starting": "◔", "running": "●", "stopping": "◐", "completed": "✓",
          "stopped": "■", "failed": "✗", "lost": "?", "unreadable": "?"}
"""One character a state; the states are `gpu_engine.runs.state.StateName`."""
TONES = {"queued": "dim", "starting": "accent", "running": "accent", "stopping": "warn",
         "completed": "good", "stopped": "warn", "failed": "bad", "lost": "bad",
         "unreadable": "warn"}
"""The style in a list, one of `rows.STYLES`."""
_COLOURS = {"accent": "$text-success", "good": "$text-success", "warn": "$text-warning",
            "bad": "$text-error"}
WARNING = "!"
"""Before what a person should know and nobody has failed at."""


def glyph(state: str) -> str:
    """One character for a state; "?" for one that this program does not know."""
    return GLYPHS.get(state, "?")


def tone(state: str) -> str:
    """The style of a state in a list, one of `rows.STYLES`."""
    return TONES.get(state, "dim")


def colour(state: str) -> str:
    """The colour of a state in a sentence, one of the theme's; "" for the text's own."""
    return _COLOURS.get(tone(state), "")
