"""Small dialogs: a message, a question, a name, a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from gpu_engine.common.clean import clean_lines

LETTERS: list[BindingType] = [Binding("j", "app.simulate_key('down')", "down", show=False),
                              Binding("k", "app.simulate_key('up')", "up", show=False)]
"""For a sheet or list in a dialog without a field: j and k move as in the lists of the panes."""


def harmless(text: str) -> Content:
    """Text of any origin, made safe to show: line by line, without markup."""
    return Content("\n".join(clean_lines(text)))


class Message(ModalScreen[None]):
    """A message that the person must close."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,space", "close", "close")]

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
                yield Button("OK", id="ok", compact=True, action="screen.close")

    def action_close(self) -> None:
        self.dismiss(None)


class Confirm(ModalScreen[bool]):
    """A question with two answers; the safe one has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "no"),
        Binding("y", "answer(True)", "yes"),
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
                             action="screen.answer(False)")
                yield Button(harmless(self._yes), id="yes", compact=True, variant="warning",
                             action="screen.answer(True)")

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class AskName(ModalScreen[str | None]):
    """Asks for a name. An invalid one stays in the field, with the reason below it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, title: str, value: str, note: str, *,
                 wrong: Callable[[str], str | None] = lambda name: None,
                 hint: Callable[[str], str] = lambda name: "", longest: int = 64,
                 may_be_empty: bool = False) -> None:
        """`note`: what the name is for. `wrong`: why a name is invalid, None if it is valid.
        `hint`: a remark about a valid name. Both are called at each key, so they must be fast."""
        super().__init__()
        self._title, self._value, self._note = title, value, note
        self._wrong, self._hint = wrong, hint
        self._longest, self._may_be_empty = longest, may_be_empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "enter save · esc cancel"
            yield Static(harmless(self._note), classes="dialog-note")
            yield Input(self._value, compact=True, id="name", max_length=self._longest)
            yield from self.more()
            yield Static("", id="name-said")

    def more(self) -> Iterable[Widget]:
        """Fields below the name, for a subclass."""
        return ()

    def on_mount(self) -> None:
        self._show_remark(self._value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.id == "name":
            self._show_remark(event.value)

    def _show_remark(self, text: str) -> None:
        name, place = text.strip(), self.query_one("#name-said", Static)
        wrong = self._wrong(name) if name else None
        remark = wrong or (self._hint(name) if name else "")
        place.set_classes("-error" if wrong else "-warning")
        place.display = bool(remark)
        place.update(harmless(remark))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        name = self.query_one("#name", Input).value.strip()
        if self._may_be_empty if not name else self._wrong(name) is None:
            self.dismiss(name)

    def action_cancel(self) -> None:
        self.dismiss(None)


class AskLine(ModalScreen[str | None]):
    """Asks for a line of text, which may be empty. Returns None if the person cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, title: str, value: str, note: str, *, longest: int) -> None:
        """`note`: what the text is for. `longest`: the most characters that it may have."""
        super().__init__()
        self._title, self._value, self._note, self._longest = title, value, note, longest

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "enter save · esc cancel"
            yield Static(harmless(self._note), classes="dialog-note")
            yield Input(self._value, compact=True, id="line", max_length=self._longest)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        self.dismiss(None)


class AskCount(ModalScreen[int | None]):
    """Asks for a whole number from 1 to `most`."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, title: str, value: int, most: int, note: str) -> None:
        super().__init__()
        self._title, self._value, self._most, self._note = title, value, most, note

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "enter accept · esc cancel"
            yield Static(harmless(f"{self._note} There are {self._most}."), classes="dialog-note")
            yield Input(str(self._value), compact=True, id="count", type="integer",
                        max_length=max(3, len(str(self._most))), select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        try:
            wanted = int(event.value)
        except ValueError:
            return
        if 1 <= wanted <= self._most:
            self.dismiss(wanted)

    def action_cancel(self) -> None:
        self.dismiss(None)
