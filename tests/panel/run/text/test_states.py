"""How the state of a run looks, in the list and on the run's own screen."""

from __future__ import annotations

from typing import get_args

from gpu_engine.runs.state import StateName
from gpu_panel.common.rows import STYLES
from gpu_panel.run.text.states import GLYPHS, TONES, colour, glyph, tone


def test_every_state_has_a_glyph_and_a_style_that_lists_know() -> None:
    states = set(get_args(StateName))
    assert states == set(GLYPHS) == set(TONES)
    assert set(TONES.values()) <= set(STYLES)
    assert all(len(one) == 1 for one in GLYPHS.values())


def test_states_that_differ_look_different() -> None:
    looks = {(glyph(state), tone(state)) for state in GLYPHS}
    assert len(looks) == len(GLYPHS)


def test_a_state_of_another_version_is_shown_as_unknown() -> None:
    assert (glyph("paused"), tone("paused"), colour("paused")) == ("?", "dim", "")
