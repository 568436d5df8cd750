"""The pane that shows everything about one device, and the processes on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import DeviceProcess
from gpu_panel import keys
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.detail import lines as detail_lines
from gpu_panel.launch.detail.lines import ORDERS, View


class DeviceDetail(Rows):
    """Shows what it is told; the cursor is on a process."""

    HELP = """Everything the driver tells about the device under the table's cursor; the small
curves are the last two minutes, always from 0 to 100 %. What is not known is a dash. Left and
right go to another device; x ends the process under the cursor, if it is your own, after a
question."""
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("detail"))

    @dataclass
    class Wanted(Message):
        """The person wants something: close | before | after | end (with the process)."""

        what: str
        process: DeviceProcess | None = None

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = View()
        self._order = "memory"

    def show(self, view: View) -> None:
        self.view = replace(view, order=self._order)
        device = view.device
        processes = view.sample.processes if view.sample else None
        title = "Device" if device is None else f"{device.label} ─ {clean(device.name)}"
        if processes:
            title += f" · {len(processes)} process{'es' if len(processes) > 1 else ''}" \
                     f" by {self._order}"
        self.entitle(title, "i close · ← → other device")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, detail_lines.build(self.view, width)

    @property
    def process_at_cursor(self) -> DeviceProcess | None:
        key, sample = self.key_at_cursor, self.view.sample
        found = sample.processes if sample else None
        return next((p for p in found or () if str(p.pid) == key), None)

    def action_close(self) -> None:
        self.post_message(self.Wanted("close"))

    def action_other(self, which: str) -> None:
        self.post_message(self.Wanted(which))

    def action_order(self) -> None:
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self.show(self.view)

    def action_end(self) -> None:
        self.post_message(self.Wanted("end", self.process_at_cursor))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
