"""The field for a person's own command: several lines may be pasted into it."""

from __future__ import annotations

import re

from textual.events import Paste
from textual.widgets import Input
from textual.widgets.input import Selection

from gpu_engine.spec.typed_command import one_line
from gpu_engine.sweep.grid import varied


class CommandInput(Input):
    """An Input that takes all lines of what is pasted, where others take the first."""

    def on_paste(self, event: Paste) -> None:
        """Put the lines where the cursor is, or in the place of what is selected."""
        event.prevent_default()
        event.stop()
        self.replace(one_line(event.text), *sorted(self.selection))

    def select_varied(self) -> None:
        """Select the value that is mostly varied, for another to be typed in its place; without
        one, go to the end."""
        name = varied(self.value.split())
        if name is None:
            self.selection = Selection.cursor(len(self.value))
        else:
            *_, last = re.finditer(rf"(?:^|\s)-*{re.escape(name)}(?:=|\s+)(\S+)", self.value)
            self.selection = Selection(*last.span(1))
