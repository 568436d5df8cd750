"""How the states of runs look. Light: the panel's first frame has it."""

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


def glyph(state: str) -> str:
    return GLYPHS.get(state, "?")


def tone(state: str) -> str:
    return TONES.get(state, "dim")


def colour(state: str) -> str:
    return _COLOURS.get(tone(state), "")
