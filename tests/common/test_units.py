"""Figures as people read them, worked out by hand; what is not known is never a zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import units

GIB = 1 << 30
FIGURES = [units.gib, units.size, units.rate, units.clock, units.ago, units.share]


@pytest.mark.parametrize(("said", "expected"), [
    (units.gib(34.1 * GIB), "34.1"), (units.gib(GIB / 4), "0.25"), (units.gib(812 * GIB), "812"),
    (units.gib(0), "0.0"), (units.gib(99.96 * GIB), "100"), (units.gib(2048 * GIB), "2,048"),
    (units.size(812), "812 B"), (units.size(1023), "1.0 KiB"), (units.size(3.4 * 2**20), "3.4 MiB"),
    (units.size(34.1 * GIB), "34.1 GiB"), (units.size(999.4 * 1024), "999 KiB"),
    (units.size(5000 * 2**40), "5000 TiB"),
    (units.rate(12_400), "12.4k/s"), (units.rate(980), "980/s"), (units.rate(0.52), "0.52/s"),
    (units.rate(0), "0/s"), (units.rate(9.96), "10.0/s"), (units.rate(999.6), "1.0k/s"),
    (units.rate(99_960), "100k/s"), (units.rate(2.5e6), "2.5M/s"), (units.rate(3e9), "3.0G/s"),
    (units.clock(252), "04:12"), (units.clock(3723), "1:02:03"), (units.clock(-3), "00:00"),
    (units.clock(2 * 86400 + 3 * 3600 + 4 * 60 + 59), "2 d 03:04"),
    (units.ago(3), "just now"), (units.ago(89), "89 s ago"), (units.ago(12 * 60), "12 min ago"),
    (units.ago(3 * 3600), "3 h ago"), (units.ago(5 * 86400), "5 days ago"),
    (units.share(0.744), "74 %"), (units.share(0), "0 %"),
    (units.loss(1.8321), "1.832"), (units.loss(0.00611), "0.0061"), (units.loss(1.2e-5), "1.2e-05"),
    (units.loss(1234.56), "1,234.6"), (units.loss(-2e6), "-2.0e+06"), (units.loss(0.0), "0"),
    (units.loss(math.nan), "NaN"), (units.loss(math.inf), "inf"), (units.loss(-math.inf), "-inf"),
    (units.count(1240), "1,240"), (units.count(0), "0"),
    (units.counted(1, "run"), "1 run"), (units.counted(0, "run"), "0 runs"),
    (units.counted(1240, "run"), "1,240 runs")])
def test_a_figure_in_words(said, expected):
    assert said == expected


@pytest.mark.parametrize("words", FIGURES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_not_known_is_a_dash(words, value):
    assert words(value) == "–"


def test_no_loss_and_no_count_are_dashes():
    assert (units.loss(None), units.count(None)) == ("–", "–")


def test_steps_stand_in_where_examples_are_not_known():
    assert units.pace(12_400, 3) == "12.4k examples/s"
    assert units.pace_cell(12_400, 3) == "12.4k"
    assert units.pace_cell(None, 21.3) == "21.3 steps/s"
    assert units.pace_cell(None, None) == "–"
    assert units.pace(None, 21.3) == "21.3 steps/s"
    assert units.pace(None, None) == units.pace(math.nan, math.nan) == "–"


@given(st.floats(0, 1e11))
def test_a_rate_keeps_two_digits_and_stays_short(value):
    """At most half of the last digit that is shown is lost, and the column's width is bounded."""
    said = units.rate(value).removesuffix("/s")
    assert len(said) <= 5
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(said[-1], 1.0)
    assert float(said.rstrip("kMG")) * factor == pytest.approx(value, rel=0.051, abs=0.0051)
