"""The messages between a program and its probe. Each is sent as its length and a pickle."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_engine.devices.records import Device, Inventory, Sample

HEAD = struct.Struct("<I")
"""The header of a message: the length of its pickle in bytes."""


@dataclass(frozen=True, slots=True)
class Discover:
    """Find a backend's devices; answered by `Found`."""

    backend: str
    """A name that `backends.registry` loads."""
    environ: Mapping[str, str]
    """The variables of `Backend.variables` that are set."""
    patience: float
    """How many seconds one device may take."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Read devices again and again from now on; answered by `Looked` each time."""

    backend: str
    devices: tuple[Device, ...]
    interval: float
    """Seconds from one reading to the next."""
    patience: float
    """Seconds after which a device that does not answer counts as late: its sample says so, and the
    reply is sent without waiting for it any longer."""


@dataclass(frozen=True, slots=True)
class WatchBus:
    """Read the bus rates of these devices only, from now on."""

    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that were found."""

    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Looked:
    """One reading of all watched devices."""

    samples: tuple[Sample, ...]
    """In the order of the devices in the request."""
    at: float
    """When the newest of these readings began, monotonic time, which is the same in all processes
    of a machine; minus infinity before the first."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The driver can't be used at all; the probe ends."""

    problem: str


Request = Discover | Watch | WatchBus
Reply = Found | Looked | Broken


def pack(message: Request | Reply) -> bytes:
    """A message as bytes: header and pickle."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body
