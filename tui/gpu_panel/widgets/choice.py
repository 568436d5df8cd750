"""One of a few, on one line: "○ off  ● bf16  ○ fp16"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

CHOSEN, OTHER = "●", "○"


class Choice(Widget, can_focus=True):
    """A single widget where a RadioSet would be one for each option and its frame."""

    DEFAULT_CSS = """
    Choice {
        height: 1;
        width: auto;
        &:focus { background: $cursor; text-style: $cursor-style; }
        &.-invalid { background: $error-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Previous", show=False),
        Binding("right,space", "move(1)", "Next", show=False),
    ]

    value: reactive[str] = reactive("", layout=False)

    @dataclass
    class Changed(Message):
        """The person chose another one."""

        choice: Choice
        value: str

        @property
        def control(self) -> Choice:
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], *, id: str | None = None,
                 classes: str | None = None) -> None:
        """`options`: (value, what people see)."""
        super().__init__(id=id, classes=classes)
        self.options = tuple(options)
        self.set_reactive(Choice.value, self.options[0][0])

    def render(self) -> Content:
        parts: list[Content] = []
        for value, label in self.options:
            on = value == self.value
            text = f"{CHOSEN if on else OTHER} {label}"
            parts.append(Content.styled(text, "bold" if on else "$text-muted"))
        return Content("  ").join(parts)

    def choose(self, value: str) -> None:
        """Choose on the person's behalf; says so by a message."""
        if value != self.value and value in [v for v, _ in self.options]:
            self.value = value
            self.post_message(self.Changed(self, value))

    def action_move(self, step: int) -> None:
        values = [v for v, _ in self.options]
        at = values.index(self.value) if self.value in values else -step
        self.choose(values[(at + step) % len(values)])

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        start = 0
        for value, label in self.options:
            end = start + len(label) + 2
            if start <= offset.x < end:
                self.choose(value)
                return
            start = end + 2
