"""Columns that fit, the order of rows, and their texts."""

from __future__ import annotations

from gpu_engine.common.table import Column, fit, in_order, markdown, texts

COLUMNS = (
    Column[dict]("id", "id", lambda r: r["id"], stays=True),
    Column[dict]("name", "name", lambda r: r["name"], most=12, gives=((2, 6), (4, 0))),
    Column[dict]("lr", "lr", lambda r: r.get("lr", ""), gives=((3, 0),)),
    Column[dict]("note", "note", lambda r: r.get("note", "–"), gives=((3, 0),)),
    Column[dict]("curve", "curve", lambda r: "", width=10, most=0, gives=((1, 0),)),
)
ROWS = [{"id": "3f2a", "name": "a name that is long", "lr": "0.1"}, {"id": "2c", "name": "b"}]


def test_the_least_important_column_gives_way_first_and_one_that_knows_nothing_is_not_there():
    assert fit(COLUMNS, ROWS, 99) == {"id": 4, "name": 12, "lr": 3, "curve": 10}
    assert fit(COLUMNS, ROWS, 37) == {"id": 4, "name": 12, "lr": 3, "curve": 10}
    assert fit(COLUMNS, ROWS, 36) == {"id": 4, "name": 12, "lr": 3}
    assert fit(COLUMNS, ROWS, 24) == {"id": 4, "name": 6, "lr": 3}
    assert fit(COLUMNS, ROWS, 16) == {"id": 4, "name": 6}
    assert fit(COLUMNS, ROWS, 3) == {"id": 4}
    assert fit(COLUMNS, [], 99) == {"id": 2, "curve": 10}


def test_of_columns_that_matter_as_much_the_last_goes_first():
    rows = [row | {"note": "why"} for row in ROWS]
    assert fit(COLUMNS, rows, 22) == {"id": 4, "name": 6, "lr": 3}


def test_rows_without_a_value_come_last_in_both_directions():
    column = Column[dict]("lr", "lr", lambda r: r["id"], order=lambda r: r.get("lr"), falls=True)
    rows = [{"id": "a"}, {"id": "b", "lr": 1}, {"id": "c", "lr": 2}, {"id": "d", "lr": 1}]
    assert [row["id"] for row in in_order(rows, column)] == ["c", "b", "d", "a"]
    assert [row["id"] for row in in_order(rows, column, turned=True)] == ["b", "d", "c", "a"]


def test_as_text_a_column_that_says_nothing_is_left_out():
    assert texts(COLUMNS, ROWS) == [("id", "name", "lr", "note"),
                                    ("3f2a", "a name that is long", "0.1", "–"),
                                    ("2c", "b", "", "–")]
    assert markdown(["a", "b"], [["x|y", "2"]]) == ["| a | b |", "|---|---|", "| x\\|y | 2 |"]
