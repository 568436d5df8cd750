"""The line of keys: it follows the focus, a click presses a key."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input, Static

from gpu_panel.common.key_bar import KeyBar
from gpu_panel.themed import ThemedApp

from ..panel_kit import shown


class Field(Input):
    BINDINGS: ClassVar[list[Any]] = [Binding("f6", "app.third", "third")]


class App(ThemedApp):
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("f2,f3", "first", "first", tooltip="Does the first thing"),
        Binding("f4", "second", "second", tooltip="Does the second thing"),
        Binding("f5", "hidden", "hidden", show=False),
        Binding("ctrl+q", "quit", "quit", show=False)]

    def __init__(self):
        super().__init__()
        self.bar = KeyBar()
        self.done: list[str] = []
        self.second: bool | None = True
        """What `check_action` says of the second action."""

    def compose(self) -> ComposeResult:
        yield Input()
        yield Field(id="field")
        yield Static(id="drawn")
        yield self.bar

    def action_first(self):
        self.done.append("first")

    def action_second(self):
        self.done.append("second")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.second if action == "second" else True


async def test_it_shows_the_keys_of_what_has_the_focus():
    app = App()
    async with app.run_test() as pilot:
        assert shown(app.bar) == "f2 first f4 second"
        await pilot.press("tab")
        await pilot.pause()
        assert shown(app.bar) == "f6 third f2 first f4 second"
        app.second = False
        app.screen.refresh_bindings()
        await pilot.pause()
        assert shown(app.bar) == "f6 third f2 first"


async def test_a_click_presses_the_key():
    app = App()
    async with app.run_test() as pilot:
        await pilot.click(KeyBar, offset=(shown(app.bar).index("second"), 0))
        await pilot.click(KeyBar, offset=(1, 0))
        await pilot.click(KeyBar, offset=(60, 0))
        assert app.done == ["second", "first"]


async def test_a_key_that_does_nothing_now_is_dim_and_cannot_be_clicked():
    app = App()
    async with app.run_test() as pilot:
        usual = app.bar.render_line(0)
        app.second = None
        app.screen.refresh_bindings()
        await pilot.pause()
        assert shown(app.bar) == "f2 first f4 second"
        assert app.bar.render_line(0) != usual
        await pilot.click(KeyBar, offset=(10, 0))
        assert not app.done

