"""A sheet over the run screen: what the traces say that the person has asked for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from gpu_engine.common.clean import clean
from gpu_engine.diagnose import traces
from gpu_engine.runs.folder import Run
from gpu_engine.runs.traces import trace


def ask_for_traces(run: Run) -> TraceSheet:
    """Have each rank trace its next steps, wait for that, and read what they say. Raises UserError
    and OSError."""
    lines: list[str] = []
    for rank, answer in trace(run).items():
        path, _, text = traces.told(run, answer)
        lines += [f"rank {rank}" + ("" if path is None else f": {path}"), *text, ""]
    return TraceSheet(run.id, [*lines, "https://ui.perfetto.dev opens the files"])


class TraceSheet(ModalScreen[None]):
    """The sheet."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,T", "close", "close")]

    def __init__(self, run: str, lines: list[str]) -> None:
        super().__init__()
        self._run, self._lines = run, lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet") as box:
            box.border_title = Content(f"Traces of run {clean(self._run)}")
            box.border_subtitle = "esc close"
            yield Static(Content("\n".join(clean(line) for line in self._lines)), id="traces")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        """Back to the run."""
        self.dismiss(None)
