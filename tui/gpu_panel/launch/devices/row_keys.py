"""What the rows of the device table are called: a device of this machine by its id, one of a host
by both names. Neither has a space in it."""

from __future__ import annotations


def of(host: str | None, device: str) -> str:
    """The key of a device's row; `host` None: this machine's."""
    return device if host is None else f"{host} {device}"


def split(key: str) -> tuple[str | None, str]:
    """Host (None: this machine) and device id."""
    host, space, device = key.partition(" ")
    return (host, device) if space else (None, key)
