"""How the state of a run looks, in the list and on the run's own screen."""

from __future__ import annotations

import re
from typing import get_args

from gpu_engine.runs.state import StateName
from gpu_panel.common.rows import STYLES, Rows
from gpu_panel.run.text.states import GLYPHS, TONES, colour, glyph, tone


def test_every_state_has_a_glyph_and_a_style_that_lists_know() -> None:
    states = set(get_args(StateName))
    assert states == set(GLYPHS) == set(TONES)
    assert set(TONES.values()) <= set(STYLES)
    assert all(len(one) == 1 for one in GLYPHS.values())


def test_states_that_differ_look_different() -> None:
    looks = {(glyph(state), tone(state)) for state in GLYPHS}
    assert len(looks) == len(GLYPHS)


def test_a_state_has_one_colour_in_lists_and_sentences() -> None:
    of_tone = {"accent": "$text-primary", "good": "$text-success", "warn": "$text-warning",
               "bad": "$text-error", "dim": ""}
    for name, told in of_tone.items():
        shown = rule(f"rows--{name}")["color"]
        assert told in (shown, "" if shown == "$text-muted" else None)
    assert all(colour(state) == of_tone[tone(state)] for state in GLYPHS)


def rule(name: str) -> dict[str, str]:
    """What the style sheet of lists says of this style."""
    found = re.search(rf"\.{name} {{ (.*?) }}", Rows.DEFAULT_CSS)
    assert found is not None
    return dict(part.strip().split(": ") for part in found[1].split(";") if part.strip())


def test_a_state_of_another_version_is_shown_as_unknown() -> None:
    assert (glyph("paused"), tone("paused"), colour("paused")) == ("?", "dim", "")
