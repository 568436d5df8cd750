"""The detail pane: everything about one device and the processes on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Snapshot
from gpu_panel import keys
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row
from gpu_panel.launch.detail import lines
from gpu_panel.launch.detail.lines import DeviceDetails
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.shades import ShadedRows
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.gpu_processes.lines import gather, named_ranks
from gpu_panel.launch.gpu_processes.screen import ProcessTable, Runs, Stop


class DetailPane(ShadedRows, ProcessTable, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """Shows the latest sample of one device; the cursor is on a process."""

    NAME = "detail"
    TITLE = "Details of a device"
    TAB = False
    KEYS = keys.of("detail")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    ORDERS = ("memory", "SM", "CPU", "age")
    HELP = """Everything the driver reports about the device under the table's cursor. The small
curves show the last five minutes on a scale from 0 to 100 %; a dash means unknown. Left and right
go to another device; x ends the process under the cursor, if it is your own, and asks first. P
lists the processes on all devices."""

    def __init__(self, source: DeviceSource, runs: Runs, stop: Stop) -> None:
        super().__init__(runs, stop, id=self.NAME)
        self._source = source
        self._device: str | None = None
        self._lent = False
        """Whether it has the focus only as there was no more room for the device table."""
        self.shown = DeviceDetails()

    def show_device(self, device: str | None) -> None:
        """Show the device of this row, and have its bus measured if it is here; None: no device."""
        self._device = device
        self.paint()

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_focus)

    def _keep_focus(self) -> None:
        """Take the focus from the device table while a smaller terminal hides that."""
        screen, table = self.screen, self.screen.query_one("#devices")
        if screen.has_class("-narrow") and self.display and screen.focused in (None, table):
            self._lent = True
            self.focus()
        elif self._lent and not screen.has_class("-narrow"):
            self._lent = False
            if self.has_focus:
                table.focus()

    def paint(self) -> None:
        """Draw the latest sample of the device. The bus is measured of this machine's alone."""
        from gpu_engine.devices import leases  # only where details are shown

        source, (host, name) = self._source, row_keys.split(self._device or "")
        machine = source.machine(host) if self._device is not None else None
        device = machine.find(name) if machine is not None else None
        source.watch_bus(*([device.id] if device is not None and host is None else []))
        self.found, self.shown = [], DeviceDetails()
        if machine is not None and device is not None:
            sample = machine.snapshot.of(device.id) if machine.snapshot else None
            alone = replace(machine, snapshot=Snapshot(time.time(), (sample,)) if sample else None)
            self.found = gather([alone], named_ranks(self.runs()), self.order)
            self.shown = DeviceDetails(
                device, sample, (machine.freedom or {}).get(device.id),
                source.holders.get(leases.key(device)) if host is None else None,
                host is None and source.freedom is not None, machine.history, self.found,
                time.time(), host, next((source.hues.get(run.id, 0) for run in self.runs()
                                         for key, _ in run.devices if key == self._device), 0))
        self.entitle(self._title(), "i close · ← → other device")
        self.repaint()

    def _title(self) -> str:
        device, count = self.shown.device, len(self.found)
        if device is None:
            return "Device"
        counted = f" · {count} process{'es' if count > 1 else ''} by {self.order}"
        where = f" on {clean(self.shown.host)}" if self.shown.host is not None else ""
        return f"{device.label}{where} ─ {clean(device.name)}" + (counted if count else "")

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, lines.build(self.shown, width)
