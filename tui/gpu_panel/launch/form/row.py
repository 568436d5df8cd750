"""A row of the form: labelled fields, and below them what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.widget import Widget
from textual.widgets import Static

from gpu_panel.common.flow import FlowRow, Labelled
from gpu_panel.common.static_text import put_lines


class FieldRow(FlowRow):
    """Fields with their problems below. The widget for problems is made with the first one, as most
    rows never have any."""

    def __init__(self, head: str, fields: Sequence[Labelled], *, id: str | None = None) -> None:
        super().__init__(head, fields, id=id, classes="row")
        self.above_problems: Widget = self
        """The widget below which problems stand."""
        self._place: Static | None = None

    def say(self, problems: Sequence[str]) -> None:
        """Show these problems."""
        if self._place is None:
            if not problems or not isinstance(self.parent, Widget):
                return
            self._place = Static("", classes="problem")
            self.parent.mount(self._place, after=self.above_problems)
        put_lines(self._place, problems)
