"""The chart: curves as text, the reading line, zoom, strokes that differ."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from rich.style import Style
from textual.app import ComposeResult
from textual.events import MouseScrollUp

from gpu_engine.common.series import Series
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.theme import ThemedApp

from .kit import series


class Chart(ThemedApp):
    def compose(self) -> ComposeResult:
        yield CurveView(Axes(empty="no step yet"))


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


@pytest.mark.parametrize("size", [(80, 24), (6, 3), (1, 1)])
async def test_whatever_comes_is_drawn(size):
    huge = 1.7976931348623157e308
    async with Chart().run_test(size=size) as pilot:
        for values in ([], [[]], [[1.0]], [[2.0, 2.0, 2.0]], [[math.nan]],
                       [[math.nan, math.inf, -math.inf]], [[1.0, math.nan, 3.0]], [[0.0, 0.0]],
                       [[-1.0, -5.0]], [[huge, -huge]], [[5e-324, 1.0]],
                       [[float(i + r) for i in range(50)] for r in range(64)]):
            view = await chart(pilot, *values)
            for _ in range(2):
                for _ in range(3):
                    assert len(view.frame(*size)) == size[1]
                    view.action_smooth()
                view.action_log_scale()
            view.action_cross(-1)
            view.action_zoom(0.5)
            assert all(strip.cell_length == size[0] for strip in view.frame(*size))
            view.action_whole()


async def test_a_chart_as_text():
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


async def test_not_a_number_breaks_the_line_and_is_marked():
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [1.0] * 20 + [math.nan] * 20 + [1.0] * 20)
        shown = text(view).splitlines()
        assert "×" in shown[0]
        row = next(r for r in shown if "⠒⠒" in r or "⣀⣀" in r or "⠤⠤" in r or "⠉⠉" in r)
        left, right = 4 + 56 * 20 // 60 + 2, 4 + 56 * 40 // 60 - 2
        assert row[left:right].strip() == ""


async def test_the_reading_line_names_every_rank():
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


async def test_zoom_in_and_out():
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1000)])
        view.focus()
        whole = text(view)
        await pilot.press("plus", "plus")
        assert view.border_subtitle == "zoomed"
        assert " 0 " not in text(view).splitlines()[-1][:8]
        await pilot.press("minus", "minus")
        assert not view.border_subtitle
        assert text(view) == whole


async def test_the_mouse_reads_and_zooms():
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [float(x) for x in range(1000)])
        await pilot.click(view, offset=(59, 5))
        assert view.cross == 999
        view.post_message(MouseScrollUp(view, 59, 5, 0, -1, 0, False, False, False))
        await pilot.pause()
        assert view.window[1] == 999


def ink(view: CurveView) -> dict[Style | None, int]:
    """How many dots are drawn in each style, below the legend."""
    found = Counter[Style | None]()
    for segment in (s for strip in view.frame(60, 12)[1:] for s in strip):
        found[segment.style] += sum(
            (ord(c) - 0x2800).bit_count() for c in segment.text if "\u2800" < c <= "\u28ff")
    return +found


async def test_many_ranks_are_a_band():
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, *([float(r)] * 30 for r in range(20)), chosen=3)
        assert "mean of 20" in text(view)
        mean, band = (view.get_component_rich_style(f"curve--{n}") for n in ("mean", "faint"))
        (chosen,) = set(ink(view)) - {mean, band}
        assert ink(view)[mean] == 2 * ink(view)[chosen]  # which is thin
        assert ink(view)[band] > 10 * ink(view)[mean]
        view = await chart(pilot, *([float(r)] * 30 for r in range(20)), chosen=10)
        assert set(ink(view)) == {mean, band}, "the mean is on top"
        view.action_cross(-1)
        assert view.reading()[2] == "least 0, most 19.000"
        assert view.reading(6)[-1] == "… 18 more"


async def test_in_a_band_noise_cuts_no_holes_and_a_gap_stays_one():
    noise = random.Random(1)
    rough = [[r + 9 * noise.random() for _ in range(50)] for r in range(20)]
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, *rough)
        band, whole = view.get_component_rich_style("curve--faint"), ink(view)
        view = await chart(pilot, *rough, chosen=3)
        assert ink(view)
        assert not view.is_smooth  # as their mean is calm
        view.smooth = 0.9
        assert ink(view)[band] > 0.85 * whole[band]
        view.axes = Axes(x_gap=5.0)
        apart = [series([float(r)] * 10) for r in range(20)]
        for one in apart:
            one.add(40, one.hi[0])
        view.show([Curve(r, f"rank {r}", one) for r, one in enumerate(apart)])
        await pilot.pause()
        assert not any(row[20:50].strip() for row in text(view).splitlines()[1:-1])


async def test_without_colour_the_dashes_differ(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = await chart(pilot, [1.0] * 60, [2.0] * 60)
        rows = [r for r in text(view).splitlines() if any("\u2800" < c < "\u2900" for c in r)]
        assert len({r[3:].count(" ") for r in rows}) == 2


class Ranks(CurveView):
    LINES, OVERLAID = "ranks", 3


class RanksChart(ThemedApp):
    def compose(self) -> ComposeResult:
        yield Ranks(Axes(unit="GiB", may_be_log=True))


async def test_ranks_that_agree_are_one_line_and_more_than_three_that_differ_a_band():
    falls = [100.0 / (i + 1) for i in range(60)]
    async with RanksChart().run_test(size=(60, 16)) as pilot:
        view = await chart(pilot, falls, [v * 1.001 for v in falls])
        assert "rank 1" not in text(view)
        await pilot.pause()
        assert view.border_title.endswith("2 ranks agree")
        assert view.border_subtitle == "log"
        assert text(view).splitlines()[0].strip() == "GiB"
        # One of them goes on alone, has a spike, or values that are not finite: all is seen.
        view = await chart(pilot, falls[:20], falls, chosen=0)
        assert view.agree == 2
        assert max(map(len, text(view).splitlines()[:-1])) == 60
        view = await chart(pilot, falls, [*falls[:30], *[math.nan] * 30])
        assert view.agree == 0
        assert "×" in text(view)
        flat = [1.0] * 4000
        view = await chart(pilot, flat, [*flat[:2000], 1.5, *flat[2001:]], chosen=0)
        assert sum("⡇" in line or "⢸" in line for line in text(view).splitlines()) > 5
        view = await chart(pilot, falls, [v * 2 for v in falls])
        assert "rank 0  ━━ 1" in text(view)
        assert view.agree == 0
        view = await chart(pilot, *([v * (1 + i) for v in falls] for i in range(4)))
        assert "mean of 4" in text(view)
        assert "rank" not in text(view)
        view = await chart(pilot, *([v * (9 if i == 2 else 1 + i / 9) for v in falls]
                                    for i in range(4)))
        assert "rank 2" in text(view), "the odd one is drawn on top"
        await pilot.pause()
        assert view.border_subtitle == "log"
        view.action_log_scale()
        await pilot.pause()
        assert not view.border_subtitle


async def test_what_is_unfinished_is_hollow_dots_without_a_line():
    async with Chart().run_test(size=(40, 12)) as pilot:
        view = pilot.app.query_one(CurveView)
        view.show([Curve(0, "done", series([1.0, 2.0, 3.0])),
                   Curve(0, "open", series([3.0, 1.0], 1), loose=True)])
        await pilot.pause()
        assert text(view).splitlines()[0].split() == ["━━", "done", "○", "open"]
        view.show([Curve(0, "open", series([3.0, 1.0], 1), loose=True)])
        await pilot.pause()
        drawn = text(view)
        assert drawn.count("○") == 2
        assert not any("\u2800" <= c <= "\u28ff" for c in drawn)


async def test_the_spike_that_a_curve_begins_with_is_above_the_chart_until_one_zooms_in():
    async with Chart().run_test(size=(60, 12)) as pilot:
        view = pilot.app.query_one(CurveView)
        view.axes = Axes(settles=True, may_be_log=True)
        spiky, even = ([first, *(2.0 - x / 100 for x in range(99))] for first in (9.0, 2.9))
        for values, cut in ((spiky, True), (even, False), (spiky[:6], False),
                            ([9.0, *(3 * 0.95 ** x for x in range(99))], False)):  # logarithmic
            view.show([Curve(0, "a", series(values))])
            await pilot.pause()
            text(view)
            assert view.is_cut is cut
        view.axes = Axes(most=3.0)
        view.show([Curve(0, "a", series([1.0, 3.0, 900.0]))])
        await pilot.pause()
        assert "500" not in text(view)
        assert "3" in text(view)
        view.axes = Axes(settles=True, may_be_log=True)
        view.show([Curve(0, "a", series(spiky))])
        await pilot.pause()
        assert not any(row.startswith("5") for row in text(view).splitlines())
        assert "begins above" in str(view.border_subtitle or "")
        view.window = (0.0, 50.0)
        view.redraw()
        await pilot.pause()
        assert any(row.startswith("5") for row in text(view).splitlines())
