"""Which panes are on the screen: all from 100 × 30 on, one alone, none without figures."""

from __future__ import annotations

from gpu_panel.run.log import LogView
from gpu_panel.run.screen import RunScreen

from ..run_kit import (
    SMALL,
    Mini,
    Written,
    reached,
    says,
    screen_text,
    shown,
    trained,
    watched,
)


def on_screen(app: Mini) -> set[str]:
    return {pane.NAME for pane in app.run_screen._panes() if pane.is_on_screen and pane.size.area}


ALL = {pane.NAME for pane in RunScreen.PANES}


async def test_all_panes_from_100_by_30_on_and_any_of_them_alone(tmp_path):
    run = trained(tmp_path, ranks=8)
    for rank in range(2, 8):
        run.start(rank)
        run.steps(rank, 0, 99)
    async with watched(run, reached(7, 99), at=50.5, size=(100, 30)) as (pilot, app):
        screen = app.run_screen
        assert on_screen(app) == ALL
        assert screen.pane("loss").size.height >= 5
        assert screen.query_one(LogView).size.height >= 5
        assert "rank 0 says 49" in screen_text(app)
        for key, name in (("4", "log"), ("3", "ranks"), ("1", "loss"), ("2", "memory")):
            await pilot.press(key, "z")
            await shown(pilot)
            assert on_screen(app) == {name}
            assert screen.pane(name).outer_size.height >= 26
            assert screen.pane(name).has_focus_within
            await pilot.press("z")
            await shown(pilot)
            assert on_screen(app) == ALL
            assert screen.pane(name).has_focus_within
        await pilot.press("4", "z", "3")  # another one, alone too
        await shown(pilot)
        assert on_screen(app) == {"ranks"}
        await pilot.press("escape")
        await shown(pilot)
        assert on_screen(app) == ALL
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, RunScreen)
    async with watched(run, reached(7, 99), at=50.5, size=SMALL) as (pilot, app):
        high = app.run_screen.pane("loss").outer_size.height
        await pilot.press("z")
        await shown(pilot)
        assert app.run_screen.pane("loss").outer_size.height == high + 2


async def test_a_command_without_figures_shows_its_log_first(tmp_path):
    run = Written(tmp_path, ranks=1, mode="single",
                  plan={"spec": {"task": {"command": ["python", "x.py"]}}})
    run.log(0, b"the script speaks\n")
    async with watched(run, at=5, size=SMALL) as (pilot, app):
        await says(pilot, "the script speaks")
        await pilot.press("1")
        await shown(pilot)
        assert "no step yet" in screen_text(app)
