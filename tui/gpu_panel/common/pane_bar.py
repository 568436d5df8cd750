"""The tabs of a narrow screen: the panes' names on one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class PaneBar(Widget):
    """The panes' names with their number keys; a click on a name picks the pane."""

    active: reactive[str] = reactive("")
    """The pane that is shown; at first the first one."""

    @dataclass
    class Picked(Message):
        pane: str

    def __init__(self, panes: Sequence[tuple[str, str]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._panes = tuple(panes)
        self.set_reactive(PaneBar.active, self._panes[0][0])
        self._marks: dict[str, str] = {}

    def mark(self, pane: str, text: str) -> None:
        """Show `text` after a pane's name: "✗" for a problem in it, "●2" for two live runs."""
        self._marks[pane] = text
        self.refresh()

    def _label(self, number: int, pane: str, title: str) -> str:
        mark = self._marks.get(pane, "")
        return f" {number} {title}{' ' + mark if mark else ''} "

    def render(self) -> Content:
        parts = []
        for number, (pane, title) in enumerate(self._panes, 1):
            style = "bold $text-primary on $primary-muted" if pane == self.active else "$text-muted"
            parts.append(Content.styled(self._label(number, pane, title), style))
        return Content(" ").join(parts)

    def on_click(self, event: events.Click) -> None:
        start = 0
        for number, (pane, title) in enumerate(self._panes, 1):
            end = start + len(self._label(number, pane, title))
            if start <= event.x < end:
                self.post_message(self.Picked(pane))
                return
            start = end + 1
