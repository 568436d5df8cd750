"""The menu of a choice: all its options below the field, with a word about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_panel.common.dialogs import LETTERS


class ChoiceMenu(ModalScreen[str | None]):
    """Returns the value that was chosen, or None."""

    DEFAULT_CSS = """
    ChoiceMenu {
        OptionList { border: round $frame-focus; background: $surface; padding: 0 1;
                     scrollbar-size-vertical: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape,left,q", "dismiss", "close"),
        Binding("space,right", "select", "choose")]

    def __init__(self, options: Sequence[tuple[str, str, str]], chosen: str, field: Region) -> None:
        """`options`: (value, text, a word about it, perhaps empty). `field`: where the choice is
        on the screen."""
        super().__init__()
        self._options, self._chosen, self._field = tuple(options), chosen, field

    def compose(self) -> ComposeResult:
        wide = max(len(text) for _, text, _ in self._options)
        box = OptionList(*(Option(_line(text, about, wide), id=f"o{i}")
                           for i, (_, text, about) in enumerate(self._options)), markup=False)
        # Below the field, or above it if there is more room.
        field, screen = self._field, self.app.size
        longest = wide + max((len(about) + 2 for *_, about in self._options if about), default=0)
        width, height = min(longest + 5, screen.width), len(self._options) + 2
        below, above = screen.height - field.bottom, field.y
        y = field.bottom if height <= below or below >= above else max(0, above - height)
        box.styles.width = width
        box.styles.height = min(height, below if y == field.bottom else above)
        box.styles.offset = min(max(0, field.x - 2), screen.width - width), y
        yield box

    def on_mount(self) -> None:
        values = [value for value, *_ in self._options]
        box = self.query_one(OptionList)
        box.highlighted = values.index(self._chosen) if self._chosen in values else 0
        box.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._options[event.option_index][0])

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:  # beside the menu
            self.dismiss(None)

    def action_select(self) -> None:
        self.query_one(OptionList).action_select()


def _line(text: str, about: str, wide: int) -> Content:
    if not about:
        return Content(text)
    return Content.assemble(f"{text:<{wide}}  ", (about, "$text-muted"))
