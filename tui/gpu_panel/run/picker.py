"""The list from which a chart's curves are chosen, by typing a part of the name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from gpu_panel.common.rows import cells, fit

Entry = tuple[str, str, str, str]
"""(key, name, group, title): a kind of curves; the title says its latest value."""
_WIDEST = 40


class CurvePicker(ModalScreen[str | None]):
    """Returns the key of the chosen curves, or None. The list follows what is recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "cancel"),
        Binding("up", "move(-1)", "up", priority=True),
        Binding("down", "move(1)", "down", priority=True),
        Binding("pageup", "move(-10)", "page up", priority=True),
        Binding("pagedown", "move(10)", "page down", priority=True),
    ]
    DEFAULT_CSS = """
    CurvePicker {
        Input { border: none; height: 1; margin-bottom: 1; }
        OptionList { border: none; padding: 0; height: 1fr; background: $surface;
                     text-wrap: nowrap; text-overflow: ellipsis; scrollbar-size-vertical: 1; }
    }
    """

    def __init__(self, entries: Callable[[], Sequence[Entry]], now: str, chart: str,
                 left_out: int = 0) -> None:
        """`entries`: everything that can be chosen; asked again each second. `now`: the key of
        what is shown. `chart`: which chart it is for. `left_out`: how many more there would be."""
        super().__init__()
        self._entries, self._now, self._chart = entries, now, chart
        self._more = f" · {left_out:,} more are left out" if left_out else ""
        self._keys: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as box:
            box.border_title = Content(f"What the {self._chart} chart shows{self._more}")
            box.border_subtitle = "type a part of the name · enter show · esc cancel"
            yield Input(placeholder="name", compact=True)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._fill(self._now)
        self.set_interval(1.0, lambda: self._fill(self._chosen))

    @property
    def _chosen(self) -> str | None:
        at = self.query_one(OptionList).highlighted
        return self._keys[at] if at is not None and self._keys else None

    def _fill(self, chosen: str | None) -> None:
        """List what matches, with the cursor on `chosen` or else on the first one."""
        box, typed = self.query_one(OptionList), self.query_one(Input).value
        words = typed.lower().split()
        found = [e for e in self._entries()
                 if all(word in f"{e[1]} {e[2]}".lower() for word in words)]
        self._keys = [key for key, *_ in found]
        wide = min(max((cells(name) for _, name, *_ in found), default=0), _WIDEST)
        box.set_options([Option(Content.assemble(
            ("● " if key == self._now else "  ", "$text-primary"), (fit(name, wide), "bold"),
            (f"  {fit(group, 12)}", "$text-muted"), title.partition(" ─ ")[2]))
            for key, name, group, title in found] or [Option(Content.styled(
                f"nothing recorded so far has “{typed}” in its name", "$text-muted"),
                disabled=True)])
        box.highlighted = self._keys.index(chosen) if chosen in self._keys else 0

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(None if event.value else self._chosen)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._chosen is not None:
            self.dismiss(self._chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._keys[event.option_index])

    def action_move(self, by: int) -> None:
        box = self.query_one(OptionList)
        box.highlighted = min(max((box.highlighted or 0) + by, 0), box.option_count - 1)
