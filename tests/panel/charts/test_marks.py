"""Marks on a chart: where they are drawn, and how many of them."""

from __future__ import annotations

from itertools import pairwise

from gpu_panel.charts.braille import Canvas
from gpu_panel.charts.marks import BEGINS, CHECKPOINT, EVALUATION, Mark, beside, near, paint


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
