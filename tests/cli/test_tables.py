"""Tables on the terminal."""

from __future__ import annotations

from gpu_engine.cli.output import table

ROWS = [("mode", "speed"), ("single", "7"), "a title", ("dp", "1,000")]


def test_columns_are_as_wide_as_their_widest_cell():
    assert table(ROWS) == ["mode    speed", "single  7", "a title", "dp      1,000"]
    assert table(ROWS, right=True) == ["mode    speed", "single      7", "a title",
                                       "dp      1,000"]
    assert table([]) == []
