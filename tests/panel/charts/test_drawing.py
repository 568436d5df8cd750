"""What a chart is drawn of: dots as characters, strokes, marks, its legend, and small curves."""

from __future__ import annotations

import math
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import ticks
from gpu_panel.charts import axes
from gpu_panel.charts.axes import (
    ColumnValues,
    gaps,
    is_noisy,
    merged,
    most_shown,
    reduce,
    spans_decade,
)
from gpu_panel.charts.braille import DASHES, Canvas, band, sparkline, stroke
from gpu_panel.charts.drawing import legend
from gpu_panel.charts.marks import BEGINS, CHECKPOINT, EVALUATION, Mark, paint

from .kit import series

points = st.lists(st.none() | st.lists(st.integers(0, 39), min_size=3, max_size=3)
                  .map(sorted).map(tuple), min_size=2, max_size=80)


@pytest.mark.parametrize(("low", "highs", "most"), [
    (1.6, [2.0, 2.1, 2.0, 15.0], 2.1), (0.1, [2.0, 2.2, 1e8, 1e9, 2.1], 2.2),
    (-1.0, [2.0, 2.1, 90.0], 2.1), (0.04, [2.0, 2.1, 2.3, 2.0], inf),  # one that learns nothing
    (1.6, [2.0, 15.0], inf), (0.1, [2.0, 1e8, 1e9, 1e8], inf),  # most of them
    (inf, [], inf), (1.6, [2.0, 2.1, inf, 2.0], inf)])
def test_a_run_that_diverged_does_not_scale_the_axis_of_the_others(low, highs, most):
    assert most_shown(low, highs) == most



@given(points, st.integers(0, 7))
def test_strokes_stay_on_the_canvas(found, dash):
    for columns in (stroke(found, dash), band(found)):
        assert len(columns) == len(found)
        assert all(0 <= c < 1 << 40 for c in columns)
    if len(found) % 2 == 0:
        Canvas(len(found) // 2, 10).paint(stroke(found, dash), 1)


def test_a_stroke_has_no_holes():
    columns = stroke([(0, 0, 0), (20, 20, 20), None, None, (3, 3, 3)])
    assert all(columns)
    for a, b in pairwise(columns):  # neighbours touch
        low = (b & -b).bit_length() - 1
        assert low - a.bit_length() <= 1


def test_a_band_is_filled_across_columns_without_a_value_but_not_over_a_gap():
    ends = [(0, 1, 2), None, None, None, (4, 5, 6)]
    assert band(ends) == [0b111, 0b1110, 0b11100, 0b111000, 0b1110000]
    assert band(ends, frozenset({4})) == [0b111, 0, 0, 0, 0b1110000]


def test_dashes_differ_without_colour():
    flat = [(4, 4, 4)] * 72
    assert len({tuple(map(bool, stroke(flat, dash))) for dash in range(len(DASHES))}) \
        == len(DASHES)


def row(width: int, marks: list[Mark], last: float) -> str:
    plot = Canvas(width, 3)
    plot.text(0, 1, "x" * width, 1)
    paint(plot, marks, 0.0, last, 2)
    assert "".join(plot.chars[1]).replace(BEGINS, "x") == "x" * width  # behind the curves
    return "".join(plot.chars[0])


def test_marks_are_at_their_place_and_those_outside_are_not_drawn():
    marks = [Mark(0, BEGINS), Mark(10, EVALUATION), Mark(19, CHECKPOINT), Mark(25, CHECKPOINT)]
    assert row(20, marks, 19.0) == "┊         ◆        ▪"


def test_a_legend_says_how_many_it_leaves_out():
    canvas = Canvas(40, 1)
    legend(canvas, 5, [("━━", f"rank {i}", i) for i in range(9)])
    assert "".join(canvas.chars[0]) == "     ━━ rank 0  ━━ rank 1  … 7 more     "
    legend(canvas := Canvas(30, 1), 0, [("━━", f"rank {i}", i) for i in range(3)])
    assert "".join(canvas.chars[0]) == "━━ rank 0  ━━ rank 1  … 1 more"


def test_a_band_of_lines_has_their_extremes_and_the_mean_of_their_means():
    ones = [reduce(series(values), 0, 3, 4) for values in ([1.0, 2.0, 3.0, 4.0], [3.0, 6.0])]
    both = merged(ones)
    assert (both.lo, both.hi, both.mean) == (
        [1.0, 2.0, 3.0, 4.0], [3.0, 6.0, 3.0, 4.0], [2.0, 4.0, 3.0, 4.0])


def test_what_is_too_far_apart_is_not_joined():
    columns = ColumnValues([inf] * 8, [-inf] * 8, [1.0, None, 1.0, None, None, None, 1.0, 1.0],
                           frozenset())
    assert gaps(columns, 3) == frozenset()
    assert gaps(columns, 2) == {6}
    points = [(0, 0, 0) if m is not None else None for m in columns.mean]
    assert [bool(c) for c in stroke(points, broken=gaps(columns, 2))] == [
        True, True, True, False, False, False, True, True]


@pytest.mark.parametrize(("values", "drawn"), [
    ((), "    "), ((1.0,), "▄▄▄▄"), ((2.0, 2.0), "▄▄▄▄"),
    ((float("nan"),) * 4, "××××"), ((0.0, float("nan"), float("inf"), 8.0), "▁××▇"),
    ((8.0, 8.0, 0.0, float("nan"), 4.0, 4.0, 0.0, 0.0), "▇×▄▁"),
    ((8.0, 4.0, 2.0, 0.0), "▇▄▂▁")])
def test_a_sparkline_draws_what_is_finite_and_marks_what_is_not(values, drawn):
    assert sparkline(values, 4) == drawn


# --- Axes: columns, ticks and their labels, scales ---


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=600), st.integers(2, 300))
def test_columns_keep_least_and_greatest(values, width):
    found = axes.reduce(series(values), 0, max(len(values) - 1, 1), width)
    assert found.bounds() == (min(values), max(values))


@pytest.mark.parametrize(("low", "high", "most", "labels"), [
    (1.7, 5.5, 5, ["2", "3", "4", "5"]),
    (0, 37.5, 5, ["0", "10", "20", "30"]),
    (0.061, 0.069, 4, ["0.062", "0.064", "0.066", "0.068"]),
    (0, 5862, 4, ["0", "2,000", "4,000"]),
    (1e-7, 9e-7, 3, ["5e-07"]),
    (5.31, 5.78, 1, ["5.5"]),
    (3.02e-4, 3.28e-4, 3, ["3.1e-04", "3.2e-04"]),
    (9.1e-4, 1.3e-3, 4, ["0.0010", "0.0011", "0.0012", "0.0013"]),
    (1.2340e6, 1.2349e6, 3, ["1.2340e+06", "1.2345e+06"]),
])
def test_labels_are_round(low, high, most, labels):
    assert ticks.tick_labels(ticks.ticks(low, high, most)) == labels


@given(st.floats(-1e9, 1e9) | st.floats(-1e-3, 1e-3), st.floats(1e-9, 1e9), st.integers(1, 12),
       st.booleans())
def test_a_label_says_its_tick(low, span, most, log):
    columns = axes.reduce(series([low, low + span]), 0, 1, 2)
    scale = axes.scale_of([columns], 40, log=log)
    found = scale.ticks(most)
    labels = ticks.tick_labels(found)
    assert len(set(labels)) == len(labels)
    said = [float(label.replace(",", "")) for label in labels]
    # Labels leave out the rounding error of n * step.
    assert said == pytest.approx(found, rel=1e-9, abs=1e-14)


def test_a_flat_line_is_flat():
    noise = axes.reduce(series([2.3026 + 1e-6 * (x % 3) for x in range(200)]), 0, 199, 100)
    scale = axes.scale_of([noise], 40)
    rows = {dot // 4 for p in scale.points(noise) for dot in p}
    assert len(rows) == 1


def test_log_leaves_out_what_is_not_positive():
    columns = axes.reduce(series([0.0, 0.1, 1.0, 10.0, -3.0]), 0, 4, 5)
    scale = axes.scale_of([columns], 41, log=True)
    assert scale.log
    dots = scale.points(columns)
    assert dots[0] is None
    assert dots[4] is None
    assert [p[1] for p in dots[1:4]] == [0, 20, 40]
    below = axes.reduce(series([-1.0, -2.0]), 0, 1, 2)
    assert not axes.scale_of([below], 40, log=True).log


def test_smoothing_is_free_of_bias_and_keeps_gaps():
    columns = axes.reduce(series([4.0, math.nan, 4.0, 4.0]), 0, 3, 4)
    assert axes.smoothed(columns, 0.9).mean == pytest.approx([4.0, None, 4.0, 4.0])


def columns(values) -> ColumnValues:
    return ColumnValues(list(values), list(values), list(values), frozenset())


@pytest.mark.parametrize(("values", "before", "log"), [
    ((10.0, 0.9), False, True), ((10.0, 1.1), False, False), ((10.0, 1.1), True, True),
    ((10.0, 1.3), True, False), ((10.0, -0.1), True, False), ((10.0, 0.0, 0.5), False, True),
    ((0.0, 0.0), False, False), ((float("inf"), 1.0), False, False)])
def test_a_scale_is_logarithmic_where_positive_values_span_a_decade(values, before, log):
    assert spans_decade([columns(values)], before) is log


@pytest.mark.parametrize(("values", "noisy"), [
    (range(100), False), ([5] * 100, False), ([50 + 9 * (-1) ** i for i in range(100)], True),
    ([99, 80, 60, *(40 + 6 * (-1) ** i for i in range(97))], True),
    ([i + 9 * (-1) ** i for i in range(100)], False), ([9, 1] * 10, False)])
def test_noise_is_more_than_where_a_curve_goes(values, noisy):
    assert is_noisy([(v, v, v) for v in values]) is noisy
