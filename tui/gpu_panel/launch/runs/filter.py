"""The line below the list of runs in which a person types what to look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widgets import Input

from gpu_panel import keys


class FilterInput(Input):
    """The words that runs must match. It is shown only while it has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("filter"))
    DEFAULT_CSS = """
    FilterInput { border: none; height: 1; padding: 0 1; }
    """

    def __init__(self, changed: Callable[[str], object], left: Callable[[], object]) -> None:
        """`changed`: called with the text after each key; `left`: called when the person goes back
        to the list."""
        self._changed, self._left = changed, left
        super().__init__(id="runs-filter", compact=True,
                         placeholder="text, or state:failed tag:lr train.lr=0.1 name: preset: "
                                     "task: mode: note: id: · -word leaves out")

    def action_keep(self) -> None:
        """Back to the list, which stays filtered."""
        self._left()

    def action_leave(self) -> None:
        """Back to the list of all runs."""
        self.value = ""
        self._left()

    def watch_value(self, value: str) -> None:
        self._changed(value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()

    def on_blur(self, event: events.Blur) -> None:
        self.display = False
