"""Small dialogs: a sheet to read, a message, a question, a line to type."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from gpu_engine.common.clean import clean_lines

LETTERS: list[BindingType] = [Binding("j", "app.simulate_key('down')", "down", show=False),
                              Binding("k", "app.simulate_key('up')", "up", show=False)]
"""For a sheet or list in a dialog without a field: j and k move as in the lists of the panes."""


def harmless(text: str) -> Content:
    """Text of any origin, made safe to show: line by line, without markup."""
    return Content("\n".join(clean_lines(text)))


class Sheet(ModalScreen[None]):
    """A text of any length, to be read. Other keys that close it are a subclass's."""

    BINDINGS: ClassVar[list[BindingType]] = [*LETTERS, Binding("escape,q", "dismiss", "close")]

    def __init__(self, title: str, text: Content | str = "") -> None:
        super().__init__()
        self._title = title
        self.text = Static(text, markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "esc close"
            yield self.text


class Message(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,space", "dismiss", "close")]

    def __init__(self, title: str, text: str, *, severity: str = "warning") -> None:
        super().__init__()
        self._title, self._text, self._severity = title, text, severity

    def compose(self) -> ComposeResult:
        with Vertical(classes=f"dialog -{self._severity}") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "esc close"
            with VerticalScroll(classes="dialog-text", can_focus=False):
                yield Static(harmless(self._text))
            with Horizontal(classes="buttons"):
                yield Button("OK", id="ok", compact=True, action="screen.dismiss")


class Confirm(ModalScreen[bool]):
    """A question with two answers; the safe one has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(False)", "no"),
        Binding("y", "dismiss(True)", "yes"),
        Binding("left,right", "app.focus_next", "other", show=False),
    ]

    def __init__(self, title: str, text: str, *, yes: str, no: str = "Cancel") -> None:
        super().__init__()
        self._title, self._text, self._yes, self._no = title, text, yes, no

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -warning") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "y yes · n no"
            with VerticalScroll(classes="dialog-text", can_focus=False):
                yield Static(harmless(self._text))
            with Horizontal(classes="buttons"):
                yield Button(harmless(self._no), id="no", compact=True,
                             action="screen.dismiss(False)")
                yield Button(harmless(self._yes), id="yes", compact=True, variant="warning",
                             action="screen.dismiss(True)")

    def on_mount(self) -> None:
        self.query_one("#no").focus()


class AskLine(ModalScreen[str | None]):
    """Asks for a line of text, such as a name. Of an invalid one it says why."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "cancel")]

    def __init__(self, title: str, value: str, note: str, *,
                 wrong: Callable[[str], str | None] = lambda text: None,
                 instead: Callable[[str], str] = lambda text: "",
                 hint: Callable[[str], str] = lambda text: "", longest: int = 64,
                 may_be_empty: bool = False, does: str = "save") -> None:
        """`note`: what the text is for. `wrong`: why it is invalid, None if it is valid. `instead`:
        a valid text for an invalid one, which enter puts in its place. `hint`: a remark about a
        valid one. All are called at each key, so they must be fast. `does`: what enter does."""
        super().__init__()
        self._title, self._value, self._note, self._does = title, value, note, does
        self._wrong, self._instead, self._hint = wrong, instead, hint
        self._longest, self._may_be_empty = longest, may_be_empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = harmless(f"enter {self._does} · esc cancel")
            yield Static(harmless(self._note), classes="dialog-note")
            yield Input(self._value, compact=True, id="name", max_length=self._longest)
            yield Static("", id="name-said")

    def on_mount(self) -> None:
        self._show_remark(self._value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show_remark(event.value)

    def _show_remark(self, text: str) -> None:
        text, place = text.strip(), self.query_one("#name-said", Static)
        wrong = self._wrong(text) if text else None
        remark = wrong or (self._hint(text) if text else "")
        if wrong and (instead := self._instead(text)):
            remark += f". Enter offers {instead}"
        place.set_classes("-error" if wrong else "-warning")
        place.display = bool(remark)
        place.update(harmless(remark))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.input.value.strip()
        if self._may_be_empty if not text else self._wrong(text) is None:
            self.dismiss(text)
        elif text and (instead := self._instead(text)):
            event.input.value, event.input.cursor_position = instead, len(instead)
