"""Braille dots: strokes, bands and their canvas."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpu_panel.charts.braille import DASHES, Canvas, band, stroke

points = st.lists(st.none() | st.lists(st.integers(0, 39), min_size=3, max_size=3)
                  .map(sorted).map(tuple), min_size=2, max_size=80)


@given(points, st.integers(0, 7))
def test_strokes_stay_on_the_canvas(found: list[tuple[int, int, int] | None], dash: int) -> None:
    for columns in (stroke(found, dash), band(found)):
        assert len(columns) == len(found)
        assert all(0 <= c < 1 << 40 for c in columns)
    if len(found) % 2 == 0:
        Canvas(len(found) // 2, 10).paint(stroke(found, dash), 1)


def test_a_stroke_has_no_holes() -> None:
    columns = stroke([(0, 0, 0), (20, 20, 20), None, None, (3, 3, 3)])
    assert all(columns)
    for a, b in pairwise(columns):  # neighbours touch
        low = (b & -b).bit_length() - 1
        assert low - a.bit_length() <= 1


def test_a_break_is_a_hole() -> None:
    columns = stroke([(1, 1, 1), None, None, (1, 1, 1)], broken=frozenset({2}))
    assert [bool(c) for c in columns] == [True, False, False, True]


def test_dashes_differ_without_colour() -> None:
    flat = [(4, 4, 4)] * 72
    assert len({tuple(map(bool, stroke(flat, dash))) for dash in range(len(DASHES))}) \
        == len(DASHES)


def test_a_later_curve_takes_the_whole_cell() -> None:
    canvas = Canvas(1, 1)
    canvas.paint([0b1111, 0], 1)
    canvas.paint([0b0001, 0], 2)
    assert (canvas.chars, canvas.styles) == ([["⡀"]], [[2]])
