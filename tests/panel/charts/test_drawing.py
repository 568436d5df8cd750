"""What a chart is drawn of: dots as characters, strokes, marks, its legend, and small curves."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from gpu_panel.charts import palette
from gpu_panel.charts.axes import ColumnValues, gaps, merged, reduce
from gpu_panel.charts.braille import DASHES, Canvas, band, stroke, thick
from gpu_panel.charts.dots import Dot, DotsView, places
from gpu_panel.charts.drawing import legend
from gpu_panel.charts.marks import BEGINS, CHECKPOINT, EVALUATION, Mark, beside, near, paint
from gpu_panel.charts.sparkline import bar, sparkline
from gpu_panel.themed import ThemedApp

from ..colours import contrast
from .kit import series

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


TROUBLE = {"red", "yellow", "bright_red", "bright_yellow"}


@pytest.mark.parametrize("name", sorted(BUILTIN_THEMES))
async def test_no_rank_has_the_colour_of_trouble(name: str) -> None:
    app = ThemedApp()
    async with app.run_test():
        app.theme = name
        each = [style.color for style in palette.strokes(app)]
        assert len(set(each)) == palette.HUES
        if app.native_ansi_color:
            assert not {colour.name for colour in each if colour} & TROUBLE
            return
        shown = [Color.from_rich_color(colour) for colour in each]
        hues = [colour.hsl.h * 360 for colour in shown]
        assert all(60 <= hue <= 340 for hue in hues)
        assert all(min(abs(a - b), 360 - abs(a - b)) >= 60 for a, b in pairwise(hues))
        ground = Color.parse(app.theme_variables["background"])
        assert all(contrast(colour, ground) >= 3.0 for colour in shown)


def row(width: int, marks: list[Mark], last: float) -> str:
    plot = Canvas(width, 3)
    plot.text(0, 1, "x" * width, 1)
    paint(plot, marks, 0.0, last, 2)
    assert "".join(plot.chars[1]).replace(BEGINS, "x") == "x" * width  # behind the curves
    return "".join(plot.chars[2])


def test_marks_are_at_their_place_and_those_outside_are_not_drawn() -> None:
    marks = [Mark(0, BEGINS), Mark(10, EVALUATION), Mark(19, CHECKPOINT), Mark(25, CHECKPOINT)]
    assert row(20, marks, 19.0) == "┊         ◆        ▪"


def test_of_many_marks_some_are_drawn() -> None:
    marks = [Mark(x, EVALUATION) for x in range(400)]
    drawn = row(40, marks, 399.0)
    places = [x for x, char in enumerate(drawn) if char == EVALUATION]
    assert len(places) >= 5
    assert min(b - a for a, b in pairwise(places)) >= 6


def test_going_from_mark_to_mark() -> None:
    marks = [Mark(5, EVALUATION), Mark(9, CHECKPOINT), Mark(9, EVALUATION)]
    assert [beside(marks, at, 1) for at in (0, 5, 8, 9)] == [5, 9, 9, None]
    assert [beside(marks, at, -1) for at in (10, 9, 5)] == [9, 5, None]
    assert near(marks, 8, 1.0) == marks[1:]


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


def test_numbers_have_places_in_proportion_and_far_ones_by_their_logarithms():
    assert places(["2", "3", "4"]) == {"2": 0.0, "3": 0.5, "4": 1.0}
    assert places(["1e-4", "1e-3", "1e-2"]) == pytest.approx({"1e-4": 0, "1e-3": 0.5, "1e-2": 1})
    assert places(["0", "5", "50"]) == pytest.approx({"0": 0.0, "5": 0.1, "50": 1.0})
    assert places(["adam", "sgd", "adam", "lion"]) == {"adam": 0.0, "sgd": 0.5, "lion": 1.0}
    assert places(["nan", "1", "2"]) == {"nan": 0.0, "1": 0.5, "2": 1.0}  # words
    assert places(["7"]) == {"7": 0.5}
    assert places([]) == {}


async def test_the_lowest_dot_is_lowest_and_the_best_has_its_value():
    view = DotsView()

    class Mini(ThemedApp):
        def compose(self):
            yield view

    async with Mini().run_test(size=(40, 12)) as pilot:
        view.show("lr", [Dot("1", 3.0), Dot("2", 1.0, best=True), Dot("3", 2.0, partial=True),
                         Dot("9", nan), Dot("9", inf)])
        await pilot.pause()
        rows = [view.render_line(y).text for y in range(view.size.height)]
        at = {y: row for y, row in enumerate(rows) if "●" in row or "○" in row}
        assert len(at) == 3
        top, middle, low = (at[y] for y in sorted(at))
        assert "●" in top
        assert "○" in middle
        assert "● 1.000" in low or "1.000 ●" in low
        assert top.index("●") < low.index("●") < middle.index("○")
        assert [rows[-1].index(x) for x in "123"] == [
            top.index("●"), low.index("●"), middle.index("○")]
        view.show("lr", [])
        await pilot.pause()
        assert "no value yet" in "".join(view.render_line(y).text for y in range(12))


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
