"""What a rank is doing, in words, and how the state of a run looks."""

from __future__ import annotations

from typing import get_args

from gpu_engine.events.rank_view import RankView
from gpu_engine.events.schema import Error
from gpu_engine.runs.state import StateName
from gpu_panel.common.rows import STYLES
from gpu_panel.run.doing import Peers, doing
from gpu_panel.run.states import GLYPHS, TONES, colour, glyph, tone

from ..run_kit import NOW, view


def words(ranks: list[RankView], rank=0, *, live=True, unheard: tuple[int, ...]=()) -> str:
    known = {v.rank: v for v in ranks}
    return doing(known[rank], Peers.of(known), NOW, live=live, unheard=unheard)[0]


def test_what_a_rank_does():
    assert words([view(0), view(1)]) == "forward"
    assert words([view(0, phase=None)]) == "starting"
    assert words([RankView(0)]) == "not started yet"
    assert words([RankView(0)], live=False) == "never started"
    assert words([view(0, outcome="completed")]) == "✓ completed"
    failed = view(0, error=Error("OutOfMemoryError", "", None, None, None))
    assert words([failed]) == "✗ OutOfMemoryError"
    assert words([view(0)], live=False) == "ended in forward"


def test_silence_is_said():
    assert words([view(0, beat=NOW - 4)]) == "forward"
    assert words([view(0, beat=NOW - 6)]) == "silent · forward"
    assert words([view(0, beat=NOW - 6)], unheard=(0,)) == "not heard of · forward"


def test_a_rank_that_waits_names_whom():
    late = RankView(1)
    assert words([view(0, phase="init"), late]) == "waiting for rank 1"
    hung = view(1, beat=NOW - 60, phase="data")
    assert words([view(0, phase="backward", phase_since=NOW - 9), hung]) == "waiting for rank 1"
    slow = view(1, phase="data")
    assert words([view(0, phase="backward", phase_since=NOW - 9), slow]) == "waiting for rank 1"
    assert words([view(0, phase="backward", phase_since=NOW - 1), slow]) == "backward"
    many = [RankView(r) for r in range(1, 9)]
    assert words([view(0, phase="init"), *many]) == "waiting for ranks 1, 2, 3 and 5 more"


def test_who_is_behind_is_said_in_words():
    assert words([view(0, step=80), view(1)]) == "forward · 20 behind"
    fast = view(0, step=80, step_times=[(NOW - 1, 60), (NOW, 80)])
    assert words([fast, view(1)]) == "forward"
    assert words([view(0), view(1, step=99)], 1) == "forward"
    assert words([view(0, samples_per_s=50.0), view(1), view(2)]) == "forward · slowest"


# --- states --------------------------------------------------------------------------------------


def test_every_state_has_a_glyph_and_a_style_that_lists_know():
    states = set(get_args(StateName))
    assert states == set(GLYPHS) == set(TONES)
    assert set(TONES.values()) <= set(STYLES)
    assert all(len(one) == 1 for one in GLYPHS.values())


def test_a_state_of_another_version_is_shown_as_unknown():
    assert (glyph("paused"), tone("paused"), colour("paused")) == ("?", "dim", "")
