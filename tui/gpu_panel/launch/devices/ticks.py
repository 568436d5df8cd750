"""Which rows of the device table are ticked, and what that is in a spec. Pure.

On this machine alone a spec names ids (`devices.ids`). As soon as another machine takes part, it
names a host and its devices an entry (`devices.hosts`), this machine being "local".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_engine.devices.records import Inventory
from gpu_engine.hosts.records import LOCAL, BadName, HostDevices, parse_all
from gpu_panel.launch.devices import row_keys


def of_hosts(entries: Sequence[str], inventories: Mapping[str, Inventory | None]
             ) -> tuple[str, ...]:
    """The keys of the rows that entries of `devices.hosts` tick, in the order of the ranks. An
    entry without ids ticks all that its host has; none that is not known yet. `inventories`: host
    (`LOCAL` among them) → its devices."""
    try:
        parsed = parse_all(entries)
    except (BadName, AttributeError):  # the review says what is wrong with it
        return ()
    keys: list[str] = []
    for entry in parsed:
        inventory = inventories.get(entry.host)
        host = None if entry.host == LOCAL else entry.host
        every = tuple(d.id for d in inventory.devices) if inventory is not None else ()
        for name in entry.ids or every:
            device = inventory.find(name) if inventory is not None else None
            keys.append(row_keys.of(host, device.id if device is not None else name))
    return tuple(keys)


def entries(keys: Sequence[str]) -> list[str] | None:
    """The entries of `devices.hosts` that these rows are; None where all are this machine's. A
    host has its place by its first device."""
    if all(row_keys.split(key)[0] is None for key in keys):
        return None
    ids: dict[str, list[str]] = {}
    for key in keys:
        host, device = row_keys.split(key)
        ids.setdefault(host or LOCAL, []).append(device)
    return [str(HostDevices(host, tuple(found))) for host, found in ids.items()]


def named_in(entries: Sequence[str]) -> list[str]:
    """The other machines that entries of `devices.hosts` name; none where they can't be read."""
    try:
        return [entry.host for entry in parse_all(entries) if entry.host != LOCAL]
    except (BadName, AttributeError):
        return []
