"""The line of keys: it follows the focus, a click presses a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Region
from textual.widgets import Input, Static

from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.theme import ThemedApp

from ..charts.kit import series
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


# --- Only rows that have changed are drawn again, and so sent to the terminal ---


class Table(Rows):
    texts = ("first 1", "日本 second 2", "third 3")

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, [Row(text[:1], (((text, ""),),)) for text in self.texts]


class Both(ThemedApp):
    CSS = "Table { height: 5; }"

    def compose(self) -> ComposeResult:
        yield Table()
        yield CurveView()


async def test_of_rows_and_a_chart(monkeypatch):
    async with Both().run_test(size=(60, 24)) as pilot:
        table, view = pilot.app.query_one(Table), pilot.app.query_one(CurveView)
        table.repaint()
        values = [float(x % 7) for x in range(40)]
        view.show([Curve(0, "rank 0", series(values))])
        await pilot.pause()
        drawn: dict[object, list[Region]] = {}
        for widget in (table, view):
            monkeypatch.setattr(widget, "refresh", lambda *regions, widget=widget, **_:
                                drawn.update({widget: [*regions]}))
        table.texts = ("first 1", "日本 second 5", "third 3")
        table.repaint()
        assert drawn == {table: [Region(0, 1, 58, 1)]}
        view.show([Curve(0, "rank 0", series([*values[:20], 6.0, *values[21:]]))])
        await pilot.pause()
        assert 0 < len(drawn[view]) < view.size.height, "the rows around one value"
