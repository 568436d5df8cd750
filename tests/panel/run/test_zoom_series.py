"""A part of a long run that is looked at closely is shown step by step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpu_panel.run.chart import LossPane
from gpu_panel.run.store import RunStore

from ..run_kit import WIDE, Mini, Written, reached, until

SPIKE = 5_345


def losses(rank: int, first: int, last: int) -> list[float]:
    return [9.0 + rank if s == SPIKE else 2.0 + math.sin(s) / 4 + rank / 100
            for s in range(first, last + 1)]


def long_run(folder: Path, last: int = 8_000) -> Written:
    run = Written(folder)
    for rank in (0, 1):
        run.start(rank, total=40_000)
        run.steps(rank, 1, last, loss=losses(rank, 1, last))
    return run


def zoom(pane: LossPane, at: float, width: float) -> None:
    pane._window = at - width / 2, at + width / 2
    pane.redraw()


async def test_a_zoomed_part_shows_single_steps(tmp_path):
    run = long_run(tmp_path)
    async with Mini(run.run).run_test(size=WIDE) as pilot:
        screen = pilot.app.screen
        await screen.store.wait_for(lambda s: s.caught_up and reached(1, 8_000)(s), 60)
        pane = screen.query_one(LossPane)
        await until(pilot, lambda: pane.subject is not None)
        assert screen.store.loss.ranks[0].stride > 1
        pane.cross = SPIKE
        coarse = pane.reading()
        assert "9.000" not in " ".join(coarse)
        zoom(pane, SPIKE, 100)
        await until(pilot, lambda: pane.zoomed is not None)
        pane.frame(100, 20)
        assert pane.reading()[-2:] == ["rank 0  9.000", "rank 1  10.000"]
        assert "mean 9.500" in pane.reading()
        # Beside it too, and there nothing is read again.
        before = pane.zoomed
        zoom(pane, SPIKE + 80, 100)
        pane.cross = SPIKE + 80
        pane.frame(100, 20)
        (first,) = losses(0, SPIKE + 80, SPIKE + 80)
        assert pane.reading()[-2] == f"rank 0  {first:.3f}"
        assert pane.zoomed is before
        # What is far away is read when it is looked at.
        zoom(pane, 2000, 60)
        await until(pilot, lambda: pane.zoomed is not before)
        assert pane.zoomed is not None
        assert pane.zoomed.first <= 1970 <= 2030 <= pane.zoomed.last
        # The whole is drawn from what was kept of the whole.
        await pilot.press("0")
        pane.frame(100, 20)
        assert pane._finest(screen.store.loss.ranks[0]) is screen.store.loss.ranks[0]


async def test_a_wider_chart_has_room_for_more_steps(tmp_path):
    """Also one that was zoomed before it was drawn for the first time."""
    run = long_run(tmp_path)
    async with Mini(run.run).run_test(size=(80, 24)) as pilot:
        screen = pilot.app.screen
        await screen.store.wait_for(lambda s: s.caught_up and reached(1, 8_000)(s), 60)
        pane = screen.query_one(LossPane)
        await until(pilot, lambda: pane.subject is not None and pane._cells > 1)
        stride = screen.store.loss.ranks[0].stride
        zoom(pane, SPIKE, 2 * stride * (pane._cells + 10))
        assert not pane._is_coarse(screen.store)
        await pilot.resize_terminal(*WIDE)
        await until(pilot, lambda: pane.zoomed is not None)
        pane.cross = SPIKE
        assert pane.reading()[-2:] == ["rank 0  9.000", "rank 1  10.000"]


async def test_it_grows_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_panel.run.chart.AGAIN", 0.0)
    run = long_run(tmp_path, SPIKE - 100)
    async with Mini(run.run).run_test(size=WIDE) as pilot:
        screen = pilot.app.screen
        await screen.store.wait_for(lambda s: s.caught_up and reached(1, SPIKE - 100)(s), 60)
        pane = screen.query_one(LossPane)
        await until(pilot, lambda: pane.subject is not None)
        zoom(pane, SPIKE, 400)
        await until(pilot, lambda: pane.zoomed is not None)
        for rank in (0, 1):
            run.steps(rank, SPIKE - 99, SPIKE + 1, loss=losses(rank, SPIKE - 99, SPIKE + 1))
        pane.cross = SPIKE
        await until(pilot, lambda: pane.reading()[-2:] == ["rank 0  9.000", "rank 1  10.000"])


@pytest.mark.parametrize("reached_before", [5_000, 8_000])
def test_steps_that_were_done_again_replace_the_earlier_ones(tmp_path, reached_before):
    """Rank 1 had got as far as rank 0 in the attempt before, or only to the checkpoint: then its
    steps are not less new than those that rank 0 has done again."""
    run = Written(tmp_path)
    for rank, last in (0, 8_000), (1, reached_before):
        run.start(rank, total=40_000)
        run.steps(rank, 1, last, loss=losses(rank, 1, last))
    for rank in (0, 1):
        run.start(rank, attempt=2, total=40_000, at=4_001.0)
        run.steps(rank, 5_001, 8_000, loss=[5.0 + rank] * 3000, at=4_002.0)
    store = RunStore(run.run)
    store._reader.add([0, 1])
    while (fresh := store._reader.read(10.0)) or store._reader.cut_short:
        store.fold(fresh)
    found = store.zoom_series(SPIKE - 500, SPIKE + 500)
    assert found is not None
    assert found.ranks[0].at(SPIKE) == (5.0, 5.0, 5.0)
    assert found.all.at(SPIKE) == (5.0, 5.5, 6.0)
    before = store.zoom_series(4_800, 4_900)
    assert before is not None
    (value,) = losses(0, 4_850, 4_850)
    assert before.ranks[0].at(4_850) == (value, value, value)


def test_too_much_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_panel.run.losses.MOST", 10_000)
    run = long_run(tmp_path)
    store = RunStore(run.run)
    store._reader.add([0, 1])
    while (fresh := store._reader.read(10.0)) or store._reader.cut_short:
        store.fold(fresh)
    assert store.zoom_series(0, 8_000) is None
