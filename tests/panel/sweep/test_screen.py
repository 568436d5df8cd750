"""A sweep in the panel: one line in the list, its table, and from there its runs."""

import itertools

from gpu_engine.sweep import submit
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.compare.screen import CompareScreen
from gpu_panel.run.screen import RunScreen
from gpu_panel.sweep.pane import SweepPane
from gpu_panel.sweep.screen import SweepScreen

from ...conftest import slots
from ...sweep.made import ended, nobody_starts, submitted
from ..launch.runs.test_pane import at_the_runs
from ..panel_kit import GOLDENS, on_top, panel, picture, says, screen_text, shown, until


async def test_from_the_list_to_the_table_and_to_runs(monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1e-3,3e-4", repeat=2)
    first, second, bad, waits = made.runs
    ended(first, [2.0, 1.0], evaluation={"accuracy": 0.5})
    ended(second, [2.0, 0.5], evaluation={"accuracy": 0.7})
    ended(bad, [3.0], "boom")
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        listed = await at_the_runs(pilot, screen, 4)
        await until(pilot, lambda: "best 0.500" in shown(listed))
        assert f"▸ sweep       {made.id} toy  2 of 4 done · 1 waiting · 1 failed" in shown(listed)
        assert listed.keys == [made.id]
        await pilot.press("right")
        assert listed.keys == [made.id, *(run.id for run in made.runs)]
        await pilot.press("down", "down", "left")  # folds it from one of its runs too
        assert (listed.keys, listed.cursor) == ([made.id], 0)
        assert listed.targets[0].id == waits.id  # so it does not start as the others stop
        assert {line.id for line in listed.targets} == {run.id for run in made.runs}
        assert "u resume" not in screen_text(pilot.app).splitlines()[-1]
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert f"Stop run {waits.id}" in screen_text(pilot.app)
        await pilot.press("escape", "m")
        assert listed.marked == {run.id for run in made.runs}
        await pilot.press("m", "enter")
        await on_top(pilot, SweepScreen)
        table = pilot.app.screen.query_one(SweepPane)
        await until(pilot, lambda: "boom" in shown(table))
        assert "1e-3  2 done               0.750 ± 0.354 (2)" in shown(table)
        assert len(pilot.app.screen.query_one(KeyBar).shown) <= 8
        await pilot.press("home", "enter", "c")
        assert table.keys == ["point 1", first.id, second.id, "point 3"]
        await on_top(pilot, CompareScreen)
        assert [one.run.id for one in pilot.app.screen.store.runs] == [first.id, second.id]
        await pilot.press("escape", "down", "c")  # of one run: the best of all
        await until(pilot, lambda: isinstance(pilot.app.screen, CompareScreen)
                    and len(pilot.app.screen.store.runs) == 4)
        await pilot.press("escape")
        await on_top(pilot, SweepScreen)
        await pilot.press("b")
        await pilot.press(*"accuracy")
        await says(pilot, "eval:accuracy")
        await pilot.press("enter")
        await until(pilot, lambda: "best eval:accuracy" in shown(table))
        await pilot.press("O")
        assert table.by.text == "max:eval:accuracy"
        await pilot.press("u")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: "2 waiting" in shown(table))
        assert (bad.state().state, bad.state().attempt) == ("queued", 2)
        await pilot.press("home", "down", "enter")
        await on_top(pilot, RunScreen)
        assert pilot.app.screen.run_folder.id == first.id
        await pilot.press("escape", "s")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: "2 of 4 done, 2 stopped" in str(table.border_title))
        await pilot.press("escape")
        await on_top(pilot, screen)


async def test_a_picture_of_its_table(monkeypatch):
    nobody_starts(monkeypatch)
    ids = itertools.count(0x3f2a)
    with monkeypatch.context() as patch:
        patch.setattr(submit.os, "urandom", lambda size: next(ids).to_bytes(2, "big")[-size:])
        made = submitted("train.lr=1e-3,3e-4,1e-4", "batch.size=64,128", repeat=2)
    for at, run in enumerate(made.runs[:9]):
        best = 2.1 - 0.1 * (at // 2) + 0.02 * (at % 2)
        ended(run, [3.0, 2.5, best], "CUDA out of memory" if at == 3 else None,
              evaluation=None if at == 3 else {"accuracy": 0.41 + 0.03 * (at // 2)})
    async with panel(slots(1), size=(100, 24)) as (pilot, screen):
        await at_the_runs(pilot, screen, 12)
        await pilot.press("enter")
        await on_top(pilot, SweepScreen)
        table = pilot.app.screen.query_one(SweepPane)
        await until(pilot, lambda: "out of memory" in shown(table))
        await picture("sweep", pilot.app, GOLDENS)

