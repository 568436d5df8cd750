"""The detail pane: everything about one device and the processes on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import work
from textual.binding import BindingType
from textual.message import Message

from gpu_engine.common.clean import clean
from gpu_panel import keys
from gpu_panel.common.errors import guard
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.detail import lines
from gpu_panel.launch.detail.lines import ORDERS, DeviceDetails
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.shades import ShadedRows

if TYPE_CHECKING:
    from gpu_engine.devices.records import DeviceProcess
    from gpu_panel.commands.own import Values
    from gpu_panel.launch.devices.source import DeviceSource
    from gpu_panel.launch.runs.feed import RunLine


class DetailPane(ShadedRows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """Shows the latest sample of one device; the cursor is on a process."""

    NAME = "detail"
    TITLE = "Details of a device"
    TAB = False
    KEYS = keys.of("detail")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"end"})
    HELP = """Everything the driver reports about the device under the table's cursor. The small
curves show the last five minutes on a scale from 0 to 100 %; a dash means unknown. Left and right
go to another device; x ends the process under the cursor, if it is your own, and asks first. P
lists the processes on all devices."""

    class Closed(Message):
        """The person has closed the details."""

    @dataclass
    class OtherDevice(Message):
        """The person wants the device before this one, or the one after it."""

        which: Literal["before", "after"]

    @dataclass
    class StopRun(Message):
        """The person wants to end a process that is a rank, so its run should be stopped."""

        run: RunLine
        title: str

    def __init__(self, source: DeviceSource) -> None:
        super().__init__(id=self.NAME)
        self._source = source
        self._device: str | None = None
        self._runs: tuple[RunLine, ...] = ()
        self._order = "memory"
        self._lent = False
        """Whether it has the focus only as there was no more room for the device table."""
        self.shown = DeviceDetails()
        """What was painted last."""

    def show_device(self, device: str | None) -> None:
        """Show the device of this row of the table, and have its bus measured if it is this
        machine's; None for no device."""
        self._device = device
        self.paint()

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_focus)

    def _keep_focus(self) -> None:
        """Take the focus from the device table where a smaller terminal hides that, and give it
        back."""
        screen, table = self.screen, self.screen.query_one("#devices")
        if screen.has_class("-narrow") and self.display and screen.focused in (None, table):
            self._lent = True
            self.focus()
        elif self._lent and not screen.has_class("-narrow"):
            self._lent = False
            if self.has_focus:
                table.focus()

    def show_runs(self, runs: Sequence[RunLine]) -> None:
        """Take the runs whose ranks are to be named among the processes, from the next painting
        on."""
        self._runs = tuple(runs)

    def paint(self) -> None:
        """Draw the latest sample of the device."""
        if self._device is None:
            self._source.watch_bus()
            self._show(DeviceDetails(order=self._order))
            return
        from gpu_engine.devices import leases
        from gpu_panel.launch.detail.end_dialog import ranks_by_pid  # only where details are shown

        source, shot = self._source, self._source.snapshot
        inventory = source.inventory
        device = inventory.find(self._device) if inventory is not None else None
        host, name = row_keys.split(self._device)
        if host is not None:
            source.watch_bus()
            shown = self._of_host(host, name)
        elif device is None:
            shown = DeviceDetails(order=self._order)
            source.watch_bus()
        else:
            source.watch_bus(device.id)
            shown = DeviceDetails(
                device, shot.of(device.id) if shot else None,
                (source.freedom or {}).get(device.id), source.holders.get(leases.key(device)),
                source.freedom is not None, source.history,
                {pid: f"run {run.id} rank {rank}"
                 for pid, (run, rank) in ranks_by_pid(self._runs).items()},
                self._order, time.time(), hue=self._hue)
        self._show(shown)

    def _show(self, details: DeviceDetails) -> None:
        self.shown = details
        self.entitle(self._title(), "i close · ← → other device")
        self.repaint()

    def _of_host(self, host: str, name: str) -> DeviceDetails:
        """What is known of a host's device. Its processes have numbers of that machine."""
        source = self._source
        seen = next((s for s in source.hosts if s.host.name == host), None)
        device = seen.inventory.find(name) if seen is not None and seen.inventory else None
        if seen is None or device is None:
            return DeviceDetails(order=self._order)
        return DeviceDetails(
            device, seen.snapshot.of(device.id) if seen.snapshot else None,
            seen.freedom.get(device.id), history=source.histories.get(host), order=self._order,
            now=time.time(), host=host, hue=self._hue)

    @property
    def _hue(self) -> int:
        return next((self._source.hues.get(run.id, 0) for run in self._runs
                     for key, _ in run.devices if key == self._device), 0)

    def _title(self) -> str:
        device, sample = self.shown.device, self.shown.sample
        if device is None:
            return "Device"
        count = len(sample.processes or ()) if sample is not None else 0
        counted = f" · {count} process{'es' if count > 1 else ''} by {self._order}"
        where = f" on {clean(self.shown.host)}" if self.shown.host is not None else ""
        return f"{device.label}{where} ─ {clean(device.name)}" + (counted if count else "")

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, lines.build(self.shown, width)

    @property
    def process_at_cursor(self) -> DeviceProcess | None:
        """The process under the cursor; None if there is none."""
        key, sample = self.key_at_cursor, self.shown.sample
        found = sample.processes if sample else None
        return next((p for p in found or () if str(p.pid) == key), None)

    # --- keys ----------------------------------------------------------------------------------

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        process = self.process_at_cursor
        return of_process(process.pid if process is not None else None, self.shown.host)

    def action_close(self) -> None:
        self.post_message(self.Closed())

    def action_other(self, which: Literal["before", "after"]) -> None:
        self.post_message(self.OtherDevice(which))

    def action_order(self) -> None:
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self.paint()

    @work(exit_on_error=False, group="end-process")
    async def action_end(self) -> None:
        """Ask the person, then end the process under the cursor. If it is a rank, stop its run."""
        from gpu_panel.launch.detail.end_dialog import end_or_stop

        with guard(self.app):
            process = self.process_at_cursor
            if process is None:
                self.notify("No process selected", severity="warning")
                return
            await end_or_stop(self.app, process, self.shown.host, self._runs,
                              lambda run, title: self.post_message(self.StopRun(run, title)))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
