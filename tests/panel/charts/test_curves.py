"""Axes, dots and the chart that is made of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import ComposeResult

from gpu_panel.charts import axes
from gpu_panel.charts.braille import DASHES, Canvas, band, stroke
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.charts.series import Series
from gpu_panel.themed import ThemedApp


def series(values: list[float], first: int = 0) -> Series:
    out = Series()
    for x, value in enumerate(values, first):
        out.add(x, value)
    return out


# --- axes --------------------------------------------------------------------------------------

@given(st.lists(st.floats(-100, 100), min_size=1, max_size=600), st.integers(2, 300))
def test_columns_keep_least_and_greatest(values: list[float], width: int) -> None:
    found = axes.reduce(series(values), 0, max(len(values) - 1, 1), width)
    assert found.bounds() == (min(values), max(values))


def test_columns_of_a_part_only() -> None:
    found = axes.reduce(series([float(x) for x in range(1000)]), 200, 300, 10)
    low, high = found.bounds()
    assert 195 <= low <= 200
    assert 300 <= high <= 306


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_ticks_are_few_and_within(low: float, span: float, most: int) -> None:
    found = axes.ticks(low, low + span, most)
    assert len(found) <= most
    room = span * 1e-6 + abs(low) * 1e-9
    assert all(low - room <= v <= low + span + room for v in found)


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
def test_labels_are_round(low: float, high: float, most: int, labels: list[str]) -> None:
    assert axes.tick_labels(axes.ticks(low, high, most)) == labels


def test_labels_of_a_logarithmic_axis() -> None:
    assert axes.Scale(-2, 1, 40, log=True).ticks(5) == pytest.approx([0.01, 0.1, 1, 10])
    assert axes.tick_labels([0.01, 0.1, 1.0, 10.0]) == ["0.01", "0.1", "1", "10"]
    assert axes.tick_labels([1e-5, 1e-3, 0.1]) == ["1e-05", "0.001", "0.1"]


@given(st.floats(-1e9, 1e9) | st.floats(-1e-3, 1e-3), st.floats(1e-9, 1e9), st.integers(1, 12),
       st.booleans())
def test_a_label_says_its_tick(low: float, span: float, most: int, log: bool) -> None:
    columns = axes.reduce(series([low, low + span]), 0, 1, 2)
    scale = axes.scale_of([columns], 40, log=log)
    found = scale.ticks(most)
    labels = axes.tick_labels(found)
    assert len(set(labels)) == len(labels)
    said = [float(label.replace(",", "")) for label in labels]
    # Float noise of n * step is no part of the value.
    assert said == pytest.approx(found, rel=1e-9, abs=1e-14)


def test_times_are_round() -> None:
    assert axes.time_ticks(0, 724, 8) == [0, 120, 240, 360, 480, 600, 720]


def test_a_flat_line_is_flat() -> None:
    noise = axes.reduce(series([2.3026 + 1e-6 * (x % 3) for x in range(200)]), 0, 199, 100)
    scale = axes.scale_of([noise], 40)
    rows = {dot // 4 for p in scale.points(noise) for dot in p}
    assert len(rows) == 1


def test_log_leaves_out_what_is_not_positive() -> None:
    columns = axes.reduce(series([0.0, 0.1, 1.0, 10.0, -3.0]), 0, 4, 5)
    scale = axes.scale_of([columns], 41, log=True)
    assert scale.log
    dots = scale.points(columns)
    assert dots[0] is None
    assert dots[4] is None
    assert [p[1] for p in dots[1:4]] == [0, 20, 40]
    below = axes.reduce(series([-1.0, -2.0]), 0, 1, 2)
    assert not axes.scale_of([below], 40, log=True).log


def test_smoothing_is_free_of_bias_and_keeps_gaps() -> None:
    columns = axes.reduce(series([4.0, math.nan, 4.0, 4.0]), 0, 3, 4)
    assert axes.smoothed(columns, 0.9).mean == pytest.approx([4.0, None, 4.0, 4.0])


# --- dots --------------------------------------------------------------------------------------

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


# --- the chart ---------------------------------------------------------------------------------

class Chart(ThemedApp):
    def compose(self) -> ComposeResult:
        yield CurveView(empty="no step yet")


def text(view: CurveView) -> str:
    return "\n".join(strip.text.rstrip() for strip in view.frame(*view.size))


async def chart(pilot, *values: list[float], chosen: int | None = None) -> CurveView:
    view = pilot.app.query_one(CurveView)
    lines = [Curve(i, f"rank {i}", series(v)) for i, v in enumerate(values)]
    everything = Series()
    for v in values:
        for x, value in enumerate(v):
            everything.add(x, value)
    view.show(lines, everything, chosen)
    await pilot.pause()
    return view


@pytest.mark.parametrize("values", [
    [], [[]], [[1.0]], [[2.0, 2.0, 2.0]], [[math.nan]], [[math.nan, math.inf, -math.inf]],
    [[1.0, math.nan, 3.0]], [[0.0, 0.0]], [[-1.0, -5.0]], [[1e300, -1e300]], [[5e-324, 1.0]],
    [[1.7976931348623157e308, -1.7976931348623157e308]],
    [[float(i + r) for i in range(50)] for r in range(64)],
])
@pytest.mark.parametrize("size", [(80, 24), (160, 48), (6, 3), (2, 1), (1, 1)])
async def test_whatever_comes_is_drawn(values: list[list[float]], size: tuple[int, int]) -> None:
    async with Chart().run_test(size=size) as pilot:
        view = await chart(pilot, *values)
        for _ in range(2):
            for _ in range(3):
                assert len(view.frame(*size)) == size[1]
                view.cycle_smoothing()
            view.toggle_log()
        view.action_cross(-1)
        view.action_zoom(0.5)
        view.action_band()
        assert all(strip.cell_length == size[0] for strip in view.frame(*size))


async def test_a_chart_as_text() -> None:
    async with Chart().run_test(size=(40, 10)) as pilot:
        view = await chart(pilot, [5.0 - x / 10 for x in range(41)])
        assert text(view).splitlines() == [
            "  ⠑⠒⢄⣀",
            "      ⠉⠒⠢⣀⡀",
            "4         ⠈⠒⠢⣀⣀",
            "               ⠑⠒⢄⣀",
            "                   ⠑⠒⠢⣀⡀",
            "                       ⠈⠒⠢⣀⡀",
            "2                          ⠈⠉⠒⢄⣀",
            "                                ⠑⠒⢄⣀",
            "                                    ⠉⠒⠢⣀",
            "  0       10       20        30       40"]


@pytest.mark.parametrize(("low", "high", "labels"), [
    (5.45, 5.59, ["5.5"]), (3.02e-4, 3.38e-4, ["3.2e-04"]), (5.41, 5.65, ["5.5", "5.6"]),
    (2.3026, 2.3066, ["2.304", "2.306"]), (9.2e-4, 1.09e-3, ["0.001"]),
])
async def test_the_axis_says_what_is_there(low: float, high: float, labels: list[str]) -> None:
    async with Chart().run_test(size=(40, 9)) as pilot:
        view = await chart(pilot, [high - x * (high - low) / 40 for x in range(41)])
        gutter = [line[:9].partition(" ")[0] for line in text(view).splitlines()[:-1]]
        assert sorted(label for label in gutter if label[:1].isdigit()) == labels


async def test_not_a_number_breaks_the_line_and_is_marked() -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [1.0] * 20 + [math.nan] * 20 + [1.0] * 20)
        shown = text(view).splitlines()
        assert "×" in shown[0]
        row = next(r for r in shown if "⠒⠒" in r or "⣀⣀" in r or "⠤⠤" in r or "⠉⠉" in r)
        left, right = 4 + 56 * 20 // 60 + 2, 4 + 56 * 40 // 60 - 2
        assert row[left:right].strip() == ""


async def test_the_reading_line_names_every_rank() -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [1.0, 2.0, 3.0], [3.0, 4.0, math.nan])
        view.focus()
        await pilot.press("left")
        assert view.cross == 2
        await pilot.press("left")
        assert view.reading() == ["step 1", "mean 3.000", "rank 0  2.000", "rank 1  4.000"]
        assert "rank 1  4.000" in text(view)
        await pilot.press("right")
        assert view.reading()[-1] == "rank 1  NaN"
        await pilot.press("0")
        assert view.cross is None


async def test_zoom_in_and_out() -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1000)])
        view.focus()
        whole = text(view)
        await pilot.press("plus", "plus")
        assert view.border_subtitle == "zoomed"
        assert "0 " not in text(view).splitlines()[-1][:8]
        await pilot.press("minus", "minus")
        assert view.border_subtitle == ""
        assert text(view) == whole


async def test_many_ranks_are_a_band() -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, *([float(r)] * 30 for r in range(20)), chosen=3)
        assert view.border_subtitle == "band"
        styles = {s.style for strip in view.frame(60, 12) for s in strip if s.style}
        assert view.get_component_rich_style("curve--mean") in styles
        view.action_cross(-1)
        assert view.reading()[2] == "least 0, most 19.000"
        assert view.reading(6)[-1] == "… 18 more"


async def test_nothing_is_drawn_anew_without_news() -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = pilot.app.query_one(CurveView)
        lines = [Curve(0, "rank 0", series([1.0, 2.0]))]
        view.show(lines)
        await pilot.pause()
        frame = view._frame
        view.show(lines)
        assert view._frame is frame
        lines[0].series.add(2, 3.0)
        view.show(lines)
        assert view._frame is None


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark", "nord"])
async def test_ranks_have_strokes_of_their_own(theme: str) -> None:
    async with Chart().run_test(size=(60, 12)) as pilot:
        pilot.app.theme = theme
        view = await chart(pilot, *([float(r)] * 30 for r in range(8)))
        drawn = {s.style.color for strip in view.frame(60, 12) for s in strip
                 if s.style and any("\u2800" < c < "\u2900" for c in s.text)}
        assert len(drawn) == 8


async def test_without_colour_the_dashes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [1.0] * 60, [2.0] * 60)
        rows = [r for r in text(view).splitlines() if any("\u2800" < c < "\u2900" for c in r)]
        assert len({r[3:].count(" ") for r in rows}) == 2
