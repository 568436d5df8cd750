"""The list from which a chart's curves are chosen, by typing a part of the name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from gpu_panel.common.rows import Line, Part, Row, Rows, cells, fit

Entry = tuple[str, str, str, str]
"""(key, name, group, title): a kind of curves; the title says its latest value."""


class PickerList(Rows):
    DEFAULT_CSS = "PickerList { height: 1fr; background: $surface; }"

    def __init__(self) -> None:
        super().__init__(id="picker-list")
        self.entries: Sequence[Entry] = ()
        self.wanted = ""
        """What was typed, for the message that nothing matches."""
        self.shown_now = ""
        """The key of what the chart shows now."""

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if not self.entries:
            said = f"nothing recorded so far has “{self.wanted}” in its name"
            return None, (Row("", (((said, "dim"),),)),)
        wide = min(max(cells(name) for _, name, _, _ in self.entries), max(width // 2, 12))
        return None, [Row(key, (self._line(key, name, group, title, wide, width),))
                      for key, name, group, title in self.entries]

    def _line(self, key: str, name: str, group: str, title: str, wide: int, width: int) -> Line:
        mark: Part = ("● " if key == self.shown_now else "  ", "accent")
        latest = title.partition(" ─ ")[2]
        room = max(width - wide - 2 - 2 - 12, 0)
        return mark, (fit(name, wide) + "  ", "strong"), (fit(group, 12), "dim"), \
            (fit(latest, room) if room > 6 else "", "")


class CurvePicker(ModalScreen[str | None]):
    """Returns the key of the chosen curves, or None. The list follows what is recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("up", "move(-1)", "up", priority=True),
        Binding("down", "move(1)", "down", priority=True),
        Binding("pageup", "page(-1)", "page up", priority=True),
        Binding("pagedown", "page(1)", "page down", priority=True),
    ]
    DEFAULT_CSS = """
    CurvePicker Input { border: none; height: 1; margin-bottom: 1; }
    """

    def __init__(self, entries: Callable[[], Sequence[Entry]], now: str, chart: str,
                 left_out: int = 0) -> None:
        """`entries`: everything that can be chosen; asked again each second. `now`: the key of
        what is shown. `chart`: which chart it is for. `left_out`: how many more there would be."""
        super().__init__()
        self._entries, self._now, self._chart = entries, now, chart
        self._more = f" · {left_out:,} more are left out" if left_out else ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as box:
            box.border_title = Content(f"What the {self._chart} chart shows{self._more}")
            box.border_subtitle = "type a part of the name · enter show · esc cancel"
            yield Input(placeholder="name", compact=True, id="picker-name")
            yield PickerList()

    def on_mount(self) -> None:
        self._list.shown_now = self._now
        self.query_one(Input).focus()
        self.call_after_refresh(self._begin)
        self.set_interval(1.0, self._fill)

    def _begin(self) -> None:
        self._fill()
        if self._now in self._list.keys:
            self._list.cursor = self._list.keys.index(self._now)

    @property
    def _list(self) -> PickerList:
        return self.query_one(PickerList)

    def _fill(self) -> None:
        typed = self.query_one(Input).value
        words = typed.lower().split()
        self._list.wanted = typed
        self._list.entries = [e for e in self._entries()
                              if all(word in f"{e[1]} {e[2]}".lower() for word in words)]
        self._list.repaint()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()
        if event.value:
            self._list.cursor = 0  # the first that matches

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._list.key_at_cursor is not None:
            self.dismiss(self._list.key_at_cursor)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.dismiss(event.key)

    def action_move(self, by: int) -> None:
        self._list.cursor += by

    def action_page(self, by: int) -> None:
        self._list.cursor += by * max(self._list.size.height - 1, 1)
