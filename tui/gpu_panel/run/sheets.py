"""Sheets over the run screen: everything about the run, and what its traces say."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.diagnose import traces
from gpu_engine.diagnose.traces import trace
from gpu_engine.runs import notes
from gpu_engine.runs.folder import Run
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Sheet
from gpu_panel.common.painting import put
from gpu_panel.run.store import RunStore
from gpu_panel.run.text.about import about


class AboutRun(Sheet):
    """The sheet; it is updated each second while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "dismiss", "close")]

    def __init__(self, store: RunStore, clock: Callable[[], float]) -> None:
        super().__init__(f"Run {store.run.id}")
        self._store, self._clock = store, clock
        self._bytes: int | None = None
        self._written: list[str] = []

    def on_mount(self) -> None:
        self._paint()
        self.set_interval(1.0, self._paint)
        self._measure()

    @work(exit_on_error=False)
    async def _measure(self) -> None:
        path = self._store.run.path
        self._written = await in_thread(lambda: notes.lines(notes.read(path)))
        self._bytes = await in_thread(self._store.run.size)
        self._paint()

    def _paint(self) -> None:
        put(self.text, Content("\n").join(about(self._store, self._clock(), self._bytes,
                                                self._written)))


class TraceSheet(Sheet):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("T", "dismiss", "close")]


def ask_for_traces(run: Run) -> TraceSheet:
    """Have each rank trace its next steps, and read the traces. Raises UserError and OSError."""
    lines: list[str] = []
    for rank, answer in trace(run).items():
        path, _, text = traces.describe(run, answer)
        lines += [f"rank {rank}" + ("" if path is None else f": {path}"), *text, ""]
    lines.append("https://ui.perfetto.dev opens the files")
    return TraceSheet(f"Traces of run {run.id}", Content("\n".join(clean(line) for line in lines)))
