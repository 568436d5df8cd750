"""One value against another, as dots."""

from __future__ import annotations

from math import inf, nan

import pytest

from gpu_panel.charts.dots import Dot, DotsView, places
from gpu_panel.themed import ThemedApp


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
