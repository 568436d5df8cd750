"""Which devices are ticked after a key: one more, all, the freest, in another order. No widgets.

Keys of rows are those of `row_keys`; the order of the ticked ones is the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_engine.common.errors import UserError
from gpu_panel.launch.devices import row_keys

if TYPE_CHECKING:
    from gpu_engine.devices.leases import Holder
    from gpu_engine.devices.records import Device, Inventory, Snapshot
    from gpu_panel.launch.devices.source import DeviceSource


def all_or_none(source: DeviceSource, keys: Sequence[str], ticked: Sequence[str],
                host: str | None) -> list[str]:
    """All devices of one machine that can be used and that no run holds; if these are ticked
    already, none of its devices. Other machines' stay as they are. `keys`: those of all rows.
    `host`: None for this machine."""
    machine = source.machine(host)
    shot = machine.snapshot if machine is not None else None
    bad = {row_keys.of(host, s.device.id) for s in (shot.samples if shot else ()) if s.problem}
    more = [key for key in keys if key not in bad and key not in ticked
            and row_keys.split(key)[0] == host and why_not(source, key) is None
            and source.state_of(key) != "leased"]
    return [*ticked, *more] if more else [k for k in ticked if row_keys.split(k)[0] != host]


def why_not(source: DeviceSource, key: str) -> str | None:
    """Why this device can't be ticked; None if it can."""
    machine = source.machine(row_keys.split(key)[0])
    refusal = machine.refusal if machine is not None else None
    return None if machine is None or refusal is None else f"{machine.host}: {refusal}"


async def freest_of(source: DeviceSource, host: str | None, count: int) -> list[str] | None:
    """The freest devices of a machine, at most `count`; None: not known yet. Raises OSError."""
    inventory = source.inventory
    if inventory is None:
        return None
    if host is None:
        await source.judge()
        return [d.id for d in freest(count, inventory, source.recent, source.holders)]
    machine = source.machine(host)
    if machine is None or machine.refusal is not None:
        return []
    return [row_keys.of(host, name) for name, f in (machine.freedom or {}).items()
            if f.free][:count]


def moved(ticked: Sequence[str], key: str, by: int) -> list[str] | None:
    """The ranks of `key` and of its neighbour swapped; None if there is nothing to swap."""
    order = list(ticked)
    if key not in order:
        return None
    at = order.index(key)
    if not 0 <= at + by < len(order):
        return None
    order[at], order[at + by] = order[at + by], order[at]
    return order


def freest(count: int, inventory: Inventory, snapshots: Sequence[Snapshot],
           leases: Mapping[str, Holder]) -> list[Device]:
    """The freest devices, at most `count`; fewer if fewer may be used.

    Devices that have not been sampled long enough to be called free are included, as the person
    sees the ticks before anything is started. Devices whose state is unknown for another reason are
    not.
    """
    from gpu_engine.devices import availability as free

    snapshots = [one for one in snapshots if one.samples]  # a reading that failed has none
    if not snapshots and inventory.is_cpu:
        return list(inventory.devices[:count])
    count = min(count, len(inventory.devices))
    try:
        return free.freest(count, snapshots, leases)
    except UserError:
        states = free.judge_all(snapshots, leases)
        enough = max(1, min(len(snapshots), free.READINGS))
        so_far = free.judge_all(snapshots, leases, readings=enough)
        newest = [s for s in snapshots[-1].samples if s.device.id in so_far] if snapshots else []
        able = free.unmixed([s for s in newest if so_far[s.device.id].free or (
            s.device.is_cpu and so_far[s.device.id].state == "busy")], count)
        able.sort(key=lambda s: not states[s.device.id].free)
        chosen = {s.device.id for s in able[:count]}
        return [d for d in inventory.devices if d.id in chosen]
