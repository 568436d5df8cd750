"""The keys of the rows of the device table: for a device of this machine its id, for a device of a
host the host's name, a space and its id. Neither name contains a space. Pure.

A spec names the ids (`devices.ids`) if only devices of this machine are ticked. Otherwise each
entry of `devices.hosts` names a host and its devices; this machine is called "local".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_engine.devices.records import Inventory
from gpu_engine.remote.reach.hosts import LOCAL, BadName, HostDevices, parse_all

ANY = ""
"""Stands for any device."""


SLURM = "slurm"
"""Of the row that leaves the choice to Slurm: no device of this machine is called so."""


ALL = ""
"""Stands for all devices of a host that has not said which it has."""


def of(host: str | None, device: str) -> str:
    """The key of a device's row. `host`: None for this machine."""
    return device if host is None else f"{host} {device}"


def split(key: str) -> tuple[str | None, str]:
    """The host (None for this machine) and the device id of a key."""
    host, space, device = key.partition(" ")
    return (host, device) if space else (None, key)


def of_hosts(entries: Sequence[str], inventories: Mapping[str, Inventory | None]
             ) -> tuple[str, ...]:
    """The keys of the rows that entries of `devices.hosts` tick, in the order of the ranks. An
    entry without ids ticks all known devices of its host; where none are known, a row that stands
    for all (`ALL`). `inventories`: host, including `LOCAL`, → its devices."""
    try:
        parsed = parse_all(entries)
    except (BadName, AttributeError):  # the review reports the problem
        return ()
    keys: list[str] = []
    for entry in parsed:
        inventory = inventories.get(entry.host)
        host = None if entry.host == LOCAL else entry.host
        every = tuple(d.id for d in inventory.devices) if inventory is not None else ()
        unseen = (ALL,) if inventory is None and host is not None else ()
        for name in entry.ids or every or unseen:
            device = inventory.find(name) if inventory is not None else None
            keys.append(of(host, device.id if device is not None else name))
    return tuple(keys)


def entries(keys: Sequence[str]) -> list[str] | None:
    """The entries of `devices.hosts` for these rows; None if all are of this machine. Hosts are in
    the order of their first devices."""
    if all(split(key)[0] is None for key in keys):
        return None
    ids: dict[str, list[str]] = {}
    for key in keys:
        host, device = split(key)
        ids.setdefault(host or LOCAL, []).append(device)
    return [str(HostDevices(host, tuple(d for d in found if d != ALL)))
            for host, found in ids.items()]


def named_in(entries: Sequence[str]) -> list[str]:
    """The other machines that entries of `devices.hosts` name; empty if they can't be parsed."""
    try:
        return [entry.host for entry in parse_all(entries) if entry.host != LOCAL]
    except (BadName, AttributeError):
        return []
