"""Ticked devices that are not free, and what that means for a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_engine.devices.records import Device
from gpu_panel.launch.devices.source import DeviceSource
from gpu_panel.launch.review import Review


@dataclass(frozen=True, slots=True)
class Taken:
    """A ticked device that is not free."""

    device: Device
    state: str
    """As `gpu_engine.devices.availability` names it."""
    reason: str

    @property
    def can_be_shared(self) -> bool:
        """Whether the run would work beside somebody else's, which the engine does only where the
        spec wishes for it."""
        return self.state in ("leased", "busy") and not self.device.is_cpu

    def __str__(self) -> str:
        return f"{self.device.label}: {self.reason}"


async def taken_devices(source: DeviceSource, ids: Sequence[str]) -> dict[str, Taken]:
    """Those of the ticked devices that are not free now, by id. One that has not been seen long
    enough to be called free is none of them. Raises OSError where the leases can't be read."""
    freedom = await source.judge()
    inventory = source.inventory
    found: dict[str, Taken] = {}
    for name in ids:
        device = inventory.find(name) if inventory is not None else None
        if device is None or device.id not in freedom:
            continue
        judged = freedom[device.id]
        # Any program keeps cores busy for moments; a run of ours is another matter.
        fine = ("free", "unknown", "busy") if device.is_cpu else ("free", "unknown")
        if judged.state not in fine:
            found[device.id] = Taken(device, judged.state, judged.reason)
    return found


def sharing_would_help(review: Review, taken: Mapping[str, Taken]) -> bool:
    """Whether all that does not fit is that other runs hold devices that are ticked."""
    held = [name for name, device in taken.items() if device.state == "leased"]
    return not review.unusable and all(p.key == "devices.ids" and p.value in held
                                       for p in review.problems)
