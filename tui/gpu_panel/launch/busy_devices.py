"""Ticked devices that are not free, and whether a launch can share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_engine.devices.records import Device
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.reviewed import Review


@dataclass(frozen=True, slots=True)
class BusyDevice:
    """A ticked device that is not free."""

    device: Device
    state: str
    """The state's name in `gpu_engine.devices.availability`."""
    reason: str
    host: str | None = None
    """None: it is this machine's."""

    @property
    def can_be_shared(self) -> bool:
        """Whether the run could use it beside others, which needs the spec's permission."""
        return self.state in ("leased", "busy") and not self.device.is_cpu

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host is not None else ""
        return f"{self.device.label}{where}: {self.reason}"


async def busy_devices(source: DeviceSource, keys: Sequence[str]) -> dict[str, BusyDevice]:
    """The ticked devices that are not free now, by the key of their row; on a host, by what it said
    last. Those that have not been sampled long enough to be judged are left out. Raises OSError if
    the leases can't be read."""
    await source.judge()
    machines = {machine.host: machine for machine in source.machines}
    found: dict[str, BusyDevice] = {}
    for key in keys:
        host, name = row_keys.split(key)
        machine = machines.get(host)
        device = machine.find(name) if machine else None
        judged = (machine.freedom or {}).get(device.id) if machine and device else None
        if device is None or judged is None:
            continue
        # Any program can keep cores busy for a moment, so only a run of ours counts on a CPU slot.
        fine = ("free", "unknown", "busy") if device.is_cpu else ("free", "unknown")
        if judged.state not in fine:
            found[key if host is not None else device.id] = BusyDevice(
                device, judged.state, judged.reason, host)
    return found


def sharing_would_help(review: Review, taken: Mapping[str, BusyDevice]) -> bool:
    """Whether the only problems are ticked devices that other runs hold."""
    held = [name for name, device in taken.items() if device.state == "leased"]
    return not review.unusable and all(p.key == "devices.ids" and p.value in held
                                       for p in review.problems)
