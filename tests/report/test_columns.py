"""Columns by name: a key of the spec, or a value that runs have recorded."""

from __future__ import annotations

import pytest

from gpu_engine.report import columns
from gpu_engine.sweep.track import Extent


def test_numbers_come_before_texts_and_what_is_no_number_has_no_place():
    each = {"ten": "10", "two": "2.0", "auto": "auto", "small": "1e-3", "nan": "nan"}
    order = {name: columns.order("train.lr", {"train.lr": text}, {})
             for name, text in each.items()}
    assert columns.order("train.lr", {}, {}) is None
    assert order.pop("nan") is None
    assert sorted(order, key=order.__getitem__) == ["small", "two", "ten", "auto"]


def test_a_value_that_was_never_finite_is_told_and_not_sorted():
    values = {"loss": Extent(None, None, float("nan"))}
    assert [columns.text(f"{how}:loss", {}, values) for how in columns.HOW] == ["NaN", "", ""]
    assert [columns.order(f"{how}:loss", {}, values) for how in columns.HOW] == [None] * 3


def test_what_differs_among_the_runs_is_offered_first():
    settings = [{"train.steps": "9", "train.lr": str(at), "batch.size": str(at % 2), "x.y": "1"}
                for at in range(9)]
    assert list(columns.names(settings, [{"norm": Extent(0, 1, 1)}, {}]).items()) == [
        ("train.lr", ["0", "1", "2", "3"]), ("batch.size", ["0", "1"]), ("train.steps", ["9"]),
        ("last:norm", []), ("min:norm", []), ("max:norm", [])]


@pytest.mark.parametrize(("name", "known"), [
    ("train.lr", True), ("task.params.x", True), ("max:eval:accuracy", True), ("max:", False),
    ("mean:loss", False), ("train.", False), ("train", False), ("nonsense.lr", False)])
def test_which_names_are_columns(name, known):
    assert columns.known(name) is known
