"""A choice of one option: "○ off  ● bf16  ○ fp16", or only the chosen one, "bf16 ▾". Up and down
are left to the form around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from gpu_panel.common.picking import pick
from gpu_panel.common.rows import cells, fit

CHOSEN, OTHER, MENU = "●", "○", "▾"
GAP = 2


class Choice(Widget, can_focus=True):
    """Options side by side, or the chosen one alone; enter lists them. A RadioSet would need a
    widget for each option and its frame; Textual's Select takes the down key for itself."""

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
        Binding("right", "move(1)", "Next", show=False),
        Binding("enter,space", "open", "All options", show=False),
    ]

    value: reactive[str] = reactive("", layout=False)

    @dataclass
    class Changed(Message):
        choice: Choice
        value: str

        @property
        def control(self) -> Choice:
            """The widget that Textual's `on` compares with its selector."""
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], *, id: str | None = None,
                 classes: str | None = None, notes: Sequence[str] = (),
                 closed: bool = False) -> None:
        """`options`: pairs (value, text on the screen). `notes`: a few words about each, for the
        list. `closed`: show only the chosen one."""
        super().__init__(id=id, classes=classes)
        self.options = tuple(options)
        self.closed = closed
        self._notes = tuple(notes) or ("",) * len(self.options)
        self.set_reactive(Choice.value, self.options[0][0])

    def get_content_width(self, container: Size, viewport: Size) -> int:
        whole = sum(cells(text) + 2 + GAP for _, text in self.options) - GAP
        return max(container.width if self.closed else min(whole, container.width), 1)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1 if self.closed else len(self._lines(width))

    def render(self) -> Content:
        if self.closed:
            chosen = next((text for value, text in self.options if value == self.value), self.value)
            return Content(f"{fit(chosen, max(1, self.size.width - 2))} {MENU}")
        return Content("\n").join(
            Content(" " * GAP).join(line) for line in self._lines(self.size.width))

    def _lines(self, width: int) -> list[list[Content]]:
        """The options, on as many lines as they need; each knows its value for a click."""
        lines: list[list[Content]] = [[]]
        used = 0
        for value, text in self.options:
            if lines[-1] and used + cells(text) + 2 > width:
                lines.append([])
                used = 0
            chosen = value == self.value
            option = Content.styled(f"{CHOSEN if chosen else OTHER} {text}",
                                    "bold" if chosen else "$text-muted")
            lines[-1].append(option.stylize(Style.from_meta({"choose": value})))
            used += cells(text) + 2 + GAP
        return lines

    def choose(self, value: str) -> None:
        if value != self.value and value in [v for v, _ in self.options]:
            self.value = value
            self.post_message(self.Changed(self, value))

    def action_move(self, step: int) -> None:
        values = [v for v, _ in self.options]
        at = values.index(self.value) if self.value in values else -step
        self.choose(values[(at + step) % len(values)])

    def action_open(self) -> object:
        pick(self.app, "type a part of its name", [
            (text, note, partial(self.choose, value))
            for (value, text), note in zip(self.options, self._notes, strict=True)])

    def on_click(self, event: events.Click) -> None:
        if self.closed:
            self.action_open()
        elif value := event.style.meta.get("choose"):
            self.choose(value)
