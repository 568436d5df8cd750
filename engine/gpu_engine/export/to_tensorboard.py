"""A run as an events file of TensorBoard, written with TensorBoard's own library (no torch, no
TensorFlow)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_engine.export.atomic_output import Aside
from gpu_engine.export.needed import load
from gpu_engine.export.row import About, Names, Row

REFUSED = r"[^-/\w.\[\]:]"
"""Characters that tags don't have, as torch's SummaryWriter replaces them too."""


class TensorBoard:
    """Writes one events file into `folder`, which is a run's folder below a logdir."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if TensorBoard is not installed."""
        proto = "tensorboard.compat.proto."
        self._events, self._summaries, self._tensors, self._types, self._records = load(
            "tensorboard", f"{proto}event_pb2", f"{proto}summary_pb2", f"{proto}tensor_pb2",
            f"{proto}types_pb2", "tensorboard.summary.writer.record_writer")
        self._folder = folder
        self._names = Names(REFUSED)
        self._aside: Aside | None = None

    def begin(self, about: About) -> None:
        """Open the file, and write what was asked for as text."""
        # The name is the same each time, so that a second export replaces the first. The file
        # beside it must not have "tfevents" in its name, or TensorBoard reads it.
        name = f"events.out.tfevents.{int(about.created)}.gpu-panel.{about.id}"
        self._aside = Aside(self._folder / name, about.id)
        self._writer = self._records.RecordWriter(self._aside.file)
        self._event(self._events.Event(wall_time=about.created, file_version="brain.Event:2"))
        self._text("spec", _table(about.config), about.created)
        if about.note or about.tags:
            self._text("notes", "\n\n".join(filter(None, [", ".join(about.tags), about.note])),
                       about.created)

    def write(self, row: Row) -> None:
        values = [self._summaries.Summary.Value(tag=tag, simple_value=value)
                  for tag, value in self._names.values(row).items()]
        self._event(self._events.Event(wall_time=row.t, step=row.step,
                                       summary=self._summaries.Summary(value=values)))

    def rewind(self, step: int) -> None:
        """Tell TensorBoard to forget what has this step or a later one."""
        log = self._events.SessionLog
        self._event(self._events.Event(step=step, wall_time=time.time(),
                                       session_log=log(status=log.START)))

    def publish(self) -> None:
        assert self._aside is not None
        self._aside.publish()

    def close(self) -> str:
        assert self._aside is not None
        self._aside.close()
        return str(self._folder)

    def abandon(self) -> None:
        if self._aside is not None:
            self._aside.abandon()

    def _event(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def _text(self, tag: str, text: str, t: float) -> None:
        kinds = self._summaries
        about = kinds.SummaryMetadata(
            plugin_data=kinds.SummaryMetadata.PluginData(plugin_name="text"))
        tensor = self._tensors.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode()])
        self._event(self._events.Event(wall_time=t, step=0, summary=kinds.Summary(
            value=[kinds.Summary.Value(tag=tag, metadata=about, tensor=tensor)])))


def _table(config: Mapping[str, Any]) -> str:
    """The spec as TensorBoard shows text: Markdown."""
    lines = ["| key | value |", "|---|---|"]
    for section, value in config.items():
        each = value if isinstance(value, dict) else {"": value}
        for key, one in each.items():
            text = json.dumps(one, ensure_ascii=False).replace("|", "\\|")
            lines.append(f"| {section}{'.' if key else ''}{key} | {text} |")
    return "\n".join(lines)
