"""The dialog in which a person chooses the columns of the list of runs: the usual ones, keys of the
spec and recorded values, found by typing a part of the name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from gpu_engine.common.clean import clean
from gpu_panel.common.rows import Line, Row, Rows, cells, fit
from gpu_panel.launch.runs.columns import COLUMNS, DEFAULT

_MOST = 20
"""Columns that can be chosen beside the usual ones."""


class _Columns(Rows):
    """All columns that match what is typed, the chosen ones ticked."""

    DEFAULT_CSS = "_Columns { height: auto; max-height: 16; }"

    def __init__(self, chosen: Sequence[str], more: Mapping[str, Sequence[str]]) -> None:
        super().__init__(id="columns")
        self.chosen: dict[str, None] = dict.fromkeys(chosen)
        """Also an order: that of the columns which are none of the usual ones."""
        self.wanted = ""
        others = dict.fromkeys(name for name in chosen if name not in COLUMNS) \
            | {name: ", ".join(clean(one, 24) for one in values) for name, values in more.items()}
        self._about = {c.name: c.help for c in COLUMNS.values()} \
            | {name: about or "" for name, about in others.items()}

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        words = self.wanted.lower().split()
        found = [name for name in self._about if all(word in name.lower() for word in words)]
        if not found:
            return None, [Row("", ((("No column has this in its name", "dim"),),))]
        wide = min(max(cells(name) for name in found), max(width // 2, 8))
        return None, [Row(name, (self._line(name, wide),)) for name in found]

    def _line(self, name: str, wide: int) -> Line:
        on = name in self.chosen
        return (f"{'▣' if on else '☐'} {fit(clean(name), wide)} ", "strong" if on else ""), \
            (self._about[name], "dim")

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self._about)

    def tick(self) -> None:
        """Tick or untick the column under the cursor; the run's id always stays."""
        name = self.key_at_cursor
        if name is None or name == "run":
            return
        if name in self.chosen:
            del self.chosen[name]
        elif name in COLUMNS or sum(one not in COLUMNS for one in self.chosen) < _MOST:
            self.chosen[name] = None
        else:
            self.notify(f"At most {_MOST} columns beside the usual ones", severity="warning",
                        markup=False)
        self.repaint()


class ChooseColumns(ModalScreen[tuple[str, ...] | None]):
    """Asks which columns to show. Returns the usual ones in the table's order, then the others in
    that in which they were ticked; None: as before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,x", "tick", "show or hide"), Binding("enter", "accept", "accept"),
        Binding("slash", "find", "find"),
        Binding("d", "default", "default"), Binding("escape,q", "cancel", "cancel"),
    ]
    DEFAULT_CSS = """
    ChooseColumns Input { border: none; height: 1; margin-bottom: 1; }
    """

    def __init__(self, chosen: Sequence[str], more: Mapping[str, Sequence[str]]) -> None:
        """`more`: the other columns that can be chosen, with a few values of each."""
        super().__init__()
        self._columns = _Columns(chosen, more)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Columns of the runs"
            box.border_subtitle = "space show or hide · / find · d default · enter accept · esc"
            yield Input(placeholder="/ a part of the name, such as lr", compact=True)
            yield self._columns

    def on_mount(self) -> None:
        self._columns.focus()

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._columns.tick()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._columns.wanted = event.value
        self._columns.repaint()
        self._columns.cursor = 0

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._columns.focus()

    def action_find(self) -> None:
        self.query_one(Input).focus()

    def action_tick(self) -> None:
        self._columns.tick()

    def action_default(self) -> None:
        self._columns.chosen = dict.fromkeys(DEFAULT)
        self._columns.repaint()

    def action_accept(self) -> None:
        chosen = self._columns.chosen
        self.dismiss((*(name for name in COLUMNS if name in chosen or name == "run"),
                      *(name for name in chosen if name not in COLUMNS)))

    def action_cancel(self) -> None:
        if self._columns.has_focus:
            self.dismiss(None)
        else:
            self._columns.focus()
