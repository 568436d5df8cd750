"""The freest devices of this machine, for what a preset asks for and for the key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from gpu_engine.devices.leases import Holder
    from gpu_engine.devices.records import Device, Inventory, Snapshot


def freest(count: int, inventory: Inventory, looks: Sequence[Snapshot],
           leases: Mapping[str, Holder]) -> list[Device]:
    """The freest devices, at most `count`; fewer if fewer may be used.

    Devices that have not been sampled long enough to be called free are included, as the person
    sees the ticks before anything is started. Devices whose state is unknown for another reason are
    not.
    """
    from gpu_engine.devices import availability as free

    looks = [one for one in looks if one.samples]  # a reading that failed has none
    if not looks and inventory.is_cpu:
        return list(inventory.devices[:count])
    count = min(count, len(inventory.devices))
    try:
        return free.freest(count, looks, leases)
    except UserError:
        states = free.judge_all(looks, leases)
        so_far = free.judge_all(looks, leases, looks=max(1, min(len(looks), free.LOOKS)))
        newest = [s for s in looks[-1].samples if s.device.id in so_far] if looks else []
        able = free.unmixed([s for s in newest if so_far[s.device.id].free or (
            s.device.is_cpu and so_far[s.device.id].state == "busy")], count)
        able.sort(key=lambda s: not states[s.device.id].free)
        chosen = {s.device.id for s in able[:count]}
        return [d for d in inventory.devices if d.id in chosen]
