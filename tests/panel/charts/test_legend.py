"""The legend keeps to its width; the band over many lines; lines that are not joined."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gpu_panel.charts.axes import ColumnValues, gaps, merged, reduce
from gpu_panel.charts.braille import stroke, thick
from gpu_panel.charts.drawing import legend

from .kit import series

entries = st.lists(st.tuples(st.just("━━"), st.text("rank 0123", min_size=1, max_size=9),
                             st.integers(1, 9)), max_size=9)


@given(entries, st.integers(0, 90))
def test_a_legend_fits_and_says_how_many_it_leaves_out(given: list[tuple[str, str, int]],
                                                       width: int) -> None:
    found = legend(given, width)
    ends = [x + len(text) for x, text, _ in found]
    assert all(end <= width for end in ends)
    assert all(x > end for (x, _, _), end in zip(found[1:], ends, strict=False))  # none overlaps
    shown = sum(style > 0 for _, _, style in found)
    if found:
        left = len(given) - shown
        assert left == 0 or found[-1][1] == f"… {left} more"


def test_a_band_of_lines_has_their_extremes_and_the_mean_of_their_means() -> None:
    ones = [reduce(series(values), 0, 3, 4) for values in ([1.0, 2.0, 3.0, 4.0], [3.0, 6.0])]
    both = merged(ones)
    assert (both.lo, both.hi, both.mean) == (
        [1.0, 2.0, 3.0, 4.0], [3.0, 6.0, 3.0, 4.0], [2.0, 4.0, 3.0, 4.0])


def test_what_is_too_far_apart_is_not_joined() -> None:
    columns = ColumnValues([inf] * 8, [-inf] * 8, [1.0, None, 1.0, None, None, None, 1.0, 1.0],
                           frozenset())
    assert gaps(columns, 3) == frozenset()
    assert gaps(columns, 2) == {6}
    points = [(0, 0, 0) if m is not None else None for m in columns.mean]
    assert [bool(c) for c in stroke(points, broken=gaps(columns, 2))] == [
        True, True, True, False, False, False, True, True]


def test_a_thick_line_stays_within_the_chart() -> None:
    assert thick([0b0001, 0b0100, 0b1000, 0], 4) == [0b0011, 0b1100, 0b1000, 0]
