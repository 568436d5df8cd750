"""The keys of the rows of the device table: for a device of this machine its id, for a device of a
host the host's name, a space and its id. Neither name contains a space."""

from __future__ import annotations

ANY = ""
"""Stands for any device."""


ALL = ""
"""Stands for all devices of a host that has not said which it has."""


def of(host: str | None, device: str) -> str:
    """The key of a device's row. `host`: None for this machine."""
    return device if host is None else f"{host} {device}"


def split(key: str) -> tuple[str | None, str]:
    """The host (None for this machine) and the device id of a key."""
    host, space, device = key.partition(" ")
    return (host, device) if space else (None, key)
