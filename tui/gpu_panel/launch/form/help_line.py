"""The line below the fields of the form."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.widgets import Static


class HelpLine(Static):
    """Says what the field with the focus is for. While a letter is asked for, it has the focus
    itself, so that no field takes the letter as text."""

    @dataclass
    class Typed(Message):
        """The person has typed a letter, or "" to leave."""

        letter: str

    def ask(self) -> None:
        """Take the next key."""
        self.can_focus = True
        self.focus()
        self.update(Content("The letter of a field; esc leaves"))

    def on_key(self, event: Key) -> None:
        if event.is_printable or event.key == "escape":
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character or "" if event.is_printable else ""))

    def on_blur(self) -> None:
        self.can_focus = False
