"""Axes: columns, ticks and their labels, scales."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import ticks
from gpu_panel.charts import axes

from .kit import series


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


