"""The launch screen's detail pane: open, follow the highlighted device, close."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_engine.devices import leases as lease
from gpu_panel.launch.detail.lines import View
from gpu_panel.launch.detail.pane import DeviceDetail
from gpu_panel.launch.devices.pane import DeviceTable

if TYPE_CHECKING:
    from gpu_panel.launch.screen import LaunchScreen


class DetailActions:
    """Mixed into the launch screen."""

    @property
    def detail_open(self: LaunchScreen) -> bool:
        return self.has_class("-detail")

    def show_detail(self: LaunchScreen, *, focus: bool) -> None:
        self.add_class("-detail")
        self.paint_detail()
        if focus or self.has_class("-narrow"):
            self.query_one(DeviceDetail).focus()

    def hide_detail(self: LaunchScreen) -> None:
        if self.detail_open:
            self.remove_class("-detail")
            self.devices.watch_bus()
            if self.query_one(DeviceDetail).has_focus:
                self.query_one(DeviceTable).focus()

    def paint_detail(self: LaunchScreen) -> None:
        """Show the device under the table's cursor as it was seen last."""
        if not self.detail_open or not self.may_paint:
            return
        name = self.query_one(DeviceTable).key_at_cursor
        inventory, shot = self.devices.inventory, self.devices.snapshot
        device = inventory.find(name) if inventory is not None and name else None
        if device is None:
            self.query_one(DeviceDetail).show(View())
            self.devices.watch_bus()
            return
        self.devices.watch_bus(device.id)
        self.query_one(DeviceDetail).show(View(
            device, shot.of(device.id) if shot else None, (self.freedom or {}).get(device.id),
            self.leases.get(lease.key(device)), self.freedom is not None, self.devices.history,
            self.our_processes(), now=time.time()))

    # By name, as @on is only found in a class that handles messages itself.
    def on_device_table_details(self: LaunchScreen, event: DeviceTable.Details) -> None:
        if self.detail_open and not event.enter:
            self.hide_detail()
        else:
            self.show_detail(focus=event.enter)

    def on_device_table_highlighted(self: LaunchScreen, event: DeviceTable.Highlighted) -> None:
        self.paint_detail()

    def on_device_detail_wanted(self: LaunchScreen, event: DeviceDetail.Wanted) -> None:
        if event.what == "close":
            self.hide_detail()
        elif event.what in ("before", "after"):
            self.query_one(DeviceTable).cursor += 1 if event.what == "after" else -1
            self.paint_detail()
        else:
            self.end_process(event.process)
