"""The dialog in which a person chooses the columns of the list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.runs.columns import COLUMNS, DEFAULT


class _Columns(Rows):
    """All columns, the chosen ones ticked."""

    DEFAULT_CSS = "_Columns { height: auto; max-height: 18; }"

    def __init__(self, chosen: Sequence[str]) -> None:
        super().__init__(id="columns")
        self.chosen: set[str] = set(chosen)

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, [Row(c.name, (((f"{'▣' if c.name in self.chosen else '☐'} {c.name:<8}",
                                     "strong" if c.name in self.chosen else ""),
                                    (c.help, "dim")),)) for c in COLUMNS.values()]

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(COLUMNS)

    def tick(self) -> None:
        """Tick or untick the column under the cursor; the run's id always stays."""
        name = self.key_at_cursor
        if name is not None and name != "run":
            self.chosen ^= {name}
            self.repaint()


class ChooseColumns(ModalScreen[tuple[str, ...] | None]):
    """Asks which columns to show. Returns them in the table's order; None: as before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "tick", "show or hide"), Binding("enter", "accept", "accept"),
        Binding("d", "default", "default"), Binding("escape,q", "cancel", "cancel"),
    ]

    def __init__(self, chosen: Sequence[str]) -> None:
        super().__init__()
        self._columns = _Columns(chosen)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Columns of the runs"
            box.border_subtitle = "space show or hide · d default · enter accept · esc cancel"
            yield self._columns

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._columns.tick()

    def action_tick(self) -> None:
        self._columns.tick()

    def action_default(self) -> None:
        self._columns.chosen = set[str](DEFAULT)
        self._columns.repaint()

    def action_accept(self) -> None:
        self.dismiss(tuple(name for name in COLUMNS if name in self._columns.chosen | {"run"}))

    def action_cancel(self) -> None:
        self.dismiss(None)
