"""What the mouse does in a chart."""

from __future__ import annotations

import pytest
from textual.events import MouseScrollDown, MouseScrollRight, MouseScrollUp

from .test_curves import Chart, chart, text

pytestmark = pytest.mark.usefixtures("home")
WIDE = 60


def cell(view, x: float) -> tuple[int, int]:
    """Where an x is drawn, as an offset within the widget."""
    x0, x1 = view._range
    edge = view.gutter.left
    return edge + view._gutter + round((x - x0) / (x1 - x0) * (view._cells - 1)), 4


def wheel(view, kind, x: float, *, shift: bool = False) -> None:
    at = cell(view, x)
    view.post_message(kind(view, *at, 0, 0, 0, shift, False, False, *at))


async def test_it_reads_values_and_leaves_the_reading_line_as_it_was():
    async with Chart().run_test(size=(WIDE, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(101)])
        await pilot.hover(view, offset=cell(view, 50))
        assert abs(view.cross - 50) <= 1
        assert f"step {view.cross}" in text(view)
        await pilot.hover(view, offset=cell(view, 100))
        assert view.cross == 100
        view.on_leave()
        assert view.cross is None
        view.cross = 7
        await pilot.hover(view, offset=cell(view, 20))
        view.on_leave()
        assert view.cross == 7
        await pilot.click(view, offset=cell(view, 80))
        view.on_leave()
        assert abs(view.cross - 80) <= 1  # a click keeps it


async def test_the_wheel_zooms_around_the_pointer():
    async with Chart().run_test(size=(WIDE, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1001)])
        whole = text(view)
        wheel(view, MouseScrollUp, 250.0)
        await pilot.pause()
        view.frame(*view.size)
        x0, x1 = view._range
        assert x1 - x0 == pytest.approx(800)
        assert 250 - x0 == pytest.approx(0.25 * 800, abs=12)  # it stays below the pointer
        wheel(view, MouseScrollRight, 500.0)
        await pilot.pause()
        assert view._window == (pytest.approx(200), pytest.approx(1000))  # to the end
        for _ in range(3):
            wheel(view, MouseScrollUp, 500.0, shift=True)
        await pilot.pause()
        assert view._window == (pytest.approx(0), pytest.approx(800))
        wheel(view, MouseScrollDown, 400.0)
        await pilot.pause()
        assert view._window is None
        view.cross = None
        view.redraw()
        assert text(view) == whole


async def test_a_drag_zooms_to_what_it_covers_and_a_double_click_shows_all():
    async with Chart().run_test(size=(WIDE, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1001)])
        await pilot.mouse_down(view, offset=cell(view, 200))
        await pilot.hover(view, offset=cell(view, 600))
        assert "░" in text(view)
        await pilot.mouse_up(view, offset=cell(view, 600))
        x0, x1 = view._window
        assert (x0, x1) == (pytest.approx(200, abs=12), pytest.approx(600, abs=12))
        assert "░" not in text(view)
        await pilot.click(view, offset=(20, 4), times=2)
        assert view._window is None


async def test_a_drag_beyond_the_edge_ends_at_the_edge():
    async with Chart().run_test(size=(WIDE, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1001)])
        await pilot.mouse_down(view, offset=cell(view, 500))
        await pilot.hover(view, offset=(0, 0))
        await pilot.mouse_up(view, offset=(0, 0))
        assert view._window == (0.0, pytest.approx(500, abs=12))
