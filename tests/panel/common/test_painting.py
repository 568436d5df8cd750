"""Only rows that have changed are drawn again, and so sent to the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.geometry import Region

from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.themed import ThemedApp

from ..charts.kit import series


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
