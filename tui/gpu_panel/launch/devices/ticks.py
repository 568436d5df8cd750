"""Converts between ticked rows of the device table and a spec. Pure.

If only devices of this machine are ticked, the spec names their ids (`devices.ids`). Otherwise each
entry of `devices.hosts` names a host and its devices; this machine is called "local".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_engine.remote.reach.records import LOCAL, BadName, HostDevices, parse_all
from gpu_panel.launch.devices import row_keys

if TYPE_CHECKING:
    from gpu_engine.devices.records import Inventory


def of_hosts(entries: Sequence[str], inventories: Mapping[str, Inventory | None]
             ) -> tuple[str, ...]:
    """The keys of the rows that entries of `devices.hosts` tick, in the order of the ranks. An
    entry without ids ticks all known devices of its host; where none are known, a row that stands
    for all (`row_keys.ALL`). `inventories`: host, including `LOCAL`, → its devices."""
    try:
        parsed = parse_all(entries)
    except (BadName, AttributeError):  # the review reports the problem
        return ()
    keys: list[str] = []
    for entry in parsed:
        inventory = inventories.get(entry.host)
        host = None if entry.host == LOCAL else entry.host
        every = tuple(d.id for d in inventory.devices) if inventory is not None else ()
        unseen = (row_keys.ALL,) if inventory is None and host is not None else ()
        for name in entry.ids or every or unseen:
            device = inventory.find(name) if inventory is not None else None
            keys.append(row_keys.of(host, device.id if device is not None else name))
    return tuple(keys)


def entries(keys: Sequence[str]) -> list[str] | None:
    """The entries of `devices.hosts` for these rows; None if all are of this machine. Hosts are in
    the order of their first devices."""
    if all(row_keys.split(key)[0] is None for key in keys):
        return None
    ids: dict[str, list[str]] = {}
    for key in keys:
        host, device = row_keys.split(key)
        ids.setdefault(host or LOCAL, []).append(device)
    return [str(HostDevices(host, tuple(d for d in found if d != row_keys.ALL)))
            for host, found in ids.items()]


def named_in(entries: Sequence[str]) -> list[str]:
    """The other machines that entries of `devices.hosts` name; empty if they can't be parsed."""
    try:
        return [entry.host for entry in parse_all(entries) if entry.host != LOCAL]
    except (BadName, AttributeError):
        return []
