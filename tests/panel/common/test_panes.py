"""A screen made of panes: tabs, number keys, help, palette and style follow from its list."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from gpu_panel import keys
from gpu_panel.app import PanelApp
from gpu_panel.common.help import HelpScreen
from gpu_panel.common.painting import put
from gpu_panel.common.panes import Pane, PaneBar
from gpu_panel.keys import Key
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.screen import RunScreen
from gpu_panel.run.store import RunStore

from ...conftest import slots
from ..run_kit import SMALL, T0, WIDE, press, reached, screen_text, settled, trained, watched


class SkippedPane(Static, RunPane):
    """An added pane: the number of steps that each rank has skipped."""

    NAME = TITLE = "skipped"
    KEYS = (Key("skipped.twice", "skipped", "t", "twice", "twice", "Count every step twice",
                everywhere=True),
            Key("skipped.once", "skipped", "h", "once", "once", "Count every step once"))
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = "Steps that were skipped."
    DEFAULT_CSS = "SkippedPane { height: 5; }"
    can_focus = True
    factor = 1

    def paint(self, store: RunStore, moment: Moment):
        counted = {rank: self.factor * (view.skipped or 0) for rank, view in store.ranks.items()}
        put(self, Content(f"skipped {counted}, rank {moment.rank} is chosen"), layout=False)

    def action_twice(self):
        self.factor = 2

    def action_once(self):
        self.factor = 1


class WithSkipped(RunScreen):
    """The run screen with one more pane in its list."""

    PANES: ClassVar[tuple[type[Pane], ...]] = (*RunScreen.PANES, SkippedPane)


NUMBER = str(len(WithSkipped.tabs()))
"""The key of the added pane."""


async def test_a_pane_that_is_added_is_painted_and_has_its_style(tmp_path):
    run = trained(tmp_path)
    async with watched(run, reached(1, 99), screen=WithSkipped) as (pilot, app):
        assert "skipped {0: 0, 1: 0}, rank 0 is chosen" in screen_text(app)
        assert "╭─ skipped ─" in screen_text(app)
        run.write(1, ("step", 60, {"step": 104, "n": 5, "losses": [1.0] * 5, "loss": 1.0,
                                   "skipped": 3}))
        await settled(pilot, lambda store: store.ranks[1].skipped == 3)
        assert "skipped {0: 0, 1: 3}" in screen_text(app)
        await press(pilot, "r")  # a rank that is chosen in another pane
        assert "rank 1 is chosen" in screen_text(app)
        pane = app.run_screen.pane("skipped")
        assert pane.size.height == 3  # five lines, two of them the frame
        assert pane.styles.border_top[0] == "round"


async def test_it_has_a_tab_a_number_key_keys_and_help(tmp_path):
    async with watched(trained(tmp_path), reached(1, 99), screen=WithSkipped, size=SMALL) as (
            pilot, app):
        assert f"{NUMBER} skipped" in screen_text(app)
        assert "is chosen" not in screen_text(app)
        await press(pilot, NUMBER)
        assert "rank 0 is chosen" in screen_text(app)
        assert app.run_screen.query_one(PaneBar).active == "skipped"
        assert app.focused is (pane := app.run_screen.pane("skipped"))
        app.push_screen(HelpScreen(app.run_screen, app.focused))
        await pilot.pause()
        await pilot.pause()
        told = str(app.screen.query_one(".sheet Static", Static).content).split("\n")
        assert told[0] == "Steps that were skipped."
        at = told.index("Skipped")
        assert told[at + 1].split(maxsplit=1) == ["h", "Count every step once"]
        everywhere = told[told.index("Everywhere on this screen"):]
        assert any("Count every step twice" in line for line in everywhere)
        assert any("Go to skipped" in line for line in everywhere)
        await press(pilot, "escape", "1", "t")
        assert "is chosen" not in screen_text(app)
        assert pane.factor == 2  # everywhere
        await pilot.press("h")
        assert pane.factor == 2  # only in the pane
        await pilot.press(NUMBER, "h")
        assert pane.factor == 1


async def test_the_palette_has_it(tmp_path):
    app = PanelApp(inventory=slots(1))
    async with app.run_test(size=WIDE) as pilot:
        screen = WithSkipped(trained(tmp_path).run, clock=lambda: T0 + 200)
        await app.push_screen(screen)
        await screen.store.wait_for(reached(1, 99))
        await pilot.pause()
        offered = {c.title: c for c in app.get_system_commands(screen)}
        pane = screen.query_one(SkippedPane)
        await offered["twice (t)"].callback()
        assert pane.factor == 2
        goes = next(c for c in offered.values() if c.help == "Go to skipped")
        await goes.callback()
        await pilot.pause()
        assert app.focused is pane
