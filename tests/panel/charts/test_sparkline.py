"""Small curves in one line of text."""

from __future__ import annotations

import pytest

from gpu_panel.charts.sparkline import bar, sparkline


@pytest.mark.parametrize(("values", "drawn"), [
    ((), "    "), ((1.0,), "▄▄▄▄"), ((2.0, 2.0), "▄▄▄▄"),
    ((float("nan"),) * 4, "××××"), ((0.0, float("nan"), float("inf"), 8.0), "▁××█"),
    ((8.0, 8.0, 0.0, float("nan"), 4.0, 4.0, 0.0, 0.0), "█×▅▁"),
    ((8.0, 4.0, 2.0, 0.0), "█▅▃▁")])
def test_a_sparkline_draws_what_is_finite_and_marks_what_is_not(values, drawn):
    assert sparkline(values, 4) == drawn


def test_a_sparkline_of_huge_numbers():
    assert len(sparkline((1e308, -1e308, 5.0), 3)) == 3


@pytest.mark.parametrize(("share", "drawn"), [
    (0.0, "▁"), (0.124, "▁"), (0.125, "▂"), (0.5, "▅"), (1.0, "█"), (-3.0, "▁"), (7.0, "█")])
def test_a_bar_has_eighths(share, drawn):
    assert bar(share) == drawn
