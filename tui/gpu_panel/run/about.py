"""A sheet over the run screen: attempts with their reasons, warnings, the command, the folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from gpu_engine.common.clean import clean
from gpu_engine.runs import notes
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import LETTERS
from gpu_panel.run.store import RunStore
from gpu_panel.run.text.about import about


class AboutRun(ModalScreen[None]):
    """The sheet; it is updated each second while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape,q,i", "close", "close")]

    def __init__(self, store: RunStore, clock: Callable[[], float]) -> None:
        super().__init__()
        self._store, self._clock = store, clock
        self._shown = Content()
        self._bytes: int | None = None
        self._written: list[str] = []

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet") as box:
            box.border_title = Content(f"Run {clean(self._store.run.id)}")
            box.border_subtitle = "esc close"
            yield Static(id="about")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._paint()
        self.set_interval(1.0, self._paint)
        self._measure()

    @work(exit_on_error=False)
    async def _measure(self) -> None:
        path = self._store.run.path
        self._written = await in_thread(lambda: notes.lines(notes.read(path)), name="panel-notes")
        self._bytes = await in_thread(self._store.run.size, name="panel-size")
        self._paint()

    def _paint(self) -> None:
        text = Content("\n").join(about(self._store, self._clock(), self._bytes,
                                           self._written))
        if not text.is_same(self._shown):
            self._shown = text
            self.query_one("#about", Static).update(text)

    def action_close(self) -> None:
        """Back to the run."""
        self.dismiss(None)
