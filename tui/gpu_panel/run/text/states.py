"""How the states of runs, attempts and ranks look: a glyph and a tone for each."""

from __future__ import annotations

GLYPHS = {"queued": "◌", "starting": "◔", "running": "●", "stopping": "◐", "completed": "✓",
          "stopped": "■", "failed": "✗", "lost": "?", "unreadable": "?"}
"""A character for each state in `gpu_engine.runs.state.StateName`."""
TONES = {"queued": "dim", "starting": "accent", "running": "accent", "stopping": "accent",
         "completed": "good", "stopped": "dim", "failed": "bad", "lost": "bad",
         "unreadable": "warn"}
"""The style of each state in a list, one of `rows.STYLES`."""
_COLOURS = {"accent": "$text-primary", "good": "$text-success", "warn": "$text-warning",
            "bad": "$text-error"}
WARNING = "!"
"""Precedes warnings."""


def glyph(state: str) -> str:
    """The character for a state; "?" for an unknown state."""
    return GLYPHS.get(state, "?")


def tone(state: str) -> str:
    """The style of a state in a list: one of `rows.STYLES`."""
    return TONES.get(state, "dim")


def colour(state: str) -> str:
    """The theme's colour for a state in a sentence; "" for the colour of the text around it."""
    return _COLOURS.get(tone(state), "")
