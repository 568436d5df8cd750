"""The field for a person's own command: several lines may be pasted into it."""

from __future__ import annotations

from textual.events import Paste
from textual.widgets import Input

from gpu_engine.spec.typed_command import one_line


class CommandInput(Input):
    """An Input that takes all lines of what is pasted, where others take the first."""

    def on_paste(self, event: Paste) -> None:
        """Put the lines where the cursor is, or in the place of what is selected."""
        event.prevent_default()
        event.stop()
        self.replace(one_line(event.text), *sorted(self.selection))
