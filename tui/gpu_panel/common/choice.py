"""A choice of one option, on a single line if it fits: "○ off  ● bf16  ○ fp16"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

CHOSEN, OTHER = "●", "○"
GAP = 2
"""Cells between two options."""


class Choice(Widget, can_focus=True):
    """A row of options. A RadioSet would need a widget for each option and its frame."""

    DEFAULT_CSS = """
    Choice {
        height: auto;
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
        """The person chose another option."""

        choice: Choice
        value: str

        @property
        def control(self) -> Choice:
            """The widget that Textual's `on` compares with its selector."""
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], *, id: str | None = None,
                 classes: str | None = None) -> None:
        """`options`: pairs (value, text on the screen)."""
        super().__init__(id=id, classes=classes)
        self.options = tuple(options)
        self.set_reactive(Choice.value, self.options[0][0])

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return min(sum(len(text) + GAP for text in self._texts()) - GAP, max(container.width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render(self) -> Content:
        texts = self._texts()
        return Content("\n").join(
            Content(" " * GAP).join(
                Content.styled(texts[i], "bold" if self.options[i][0] == self.value
                               else "$text-muted") for i in line)
            for line in self._lines(self.size.width))

    def _texts(self) -> list[str]:
        return [f"{CHOSEN if value == self.value else OTHER} {label}"
                for value, label in self.options]

    def _lines(self, width: int) -> list[list[int]]:
        """The indices of the options on each line."""
        lines: list[list[int]] = [[]]
        used = 0
        for i, text in enumerate(self._texts()):
            if lines[-1] and used + len(text) > width:
                lines.append([])
                used = 0
            lines[-1].append(i)
            used += len(text) + GAP
        return lines

    def choose(self, value: str) -> None:
        """Choose an option and post `Changed`."""
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
        lines, texts = self._lines(self.size.width), self._texts()
        start = 0
        for i in lines[offset.y] if offset.y < len(lines) else ():
            if start <= offset.x < start + len(texts[i]):
                self.choose(self.options[i][0])
                return
            start += len(texts[i]) + GAP
