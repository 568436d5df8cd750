"""A sheet over the run screen: what the traces say that the person has asked for."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from gpu_engine.common.clean import clean
from gpu_engine.diagnose import traces
from gpu_engine.runs.folder import Run
from gpu_engine.runs.traces import trace
from gpu_panel.common.dialogs import Sheet


class TraceSheet(Sheet):
    """What each rank's trace says."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("T", "dismiss", "close")]


def ask_for_traces(run: Run) -> TraceSheet:
    """Have each rank trace its next steps, wait for that, and read what they say. Raises UserError
    and OSError."""
    lines: list[str] = []
    for rank, answer in trace(run).items():
        path, _, text = traces.told(run, answer)
        lines += [f"rank {rank}" + ("" if path is None else f": {path}"), *text, ""]
    lines.append("https://ui.perfetto.dev opens the files")
    return TraceSheet(f"Traces of run {run.id}", Content("\n".join(clean(line) for line in lines)))
