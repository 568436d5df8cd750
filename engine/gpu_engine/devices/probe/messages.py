"""What goes between a program and its probe: each message a pickle after its length."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_engine.devices.records import Device, Inventory, Sample

HEAD = struct.Struct("<I")
"""The length of what follows, in bytes."""


@dataclass(frozen=True, slots=True)
class Discover:
    """Find a backend's devices; answered by `Found`."""

    backend: str
    """"module:Class", see `backends.registry`."""
    environ: Mapping[str, str]
    """What it narrows its devices by: `Backend.variables`, as far as they are set."""
    patience: float
    """Seconds that one device may take."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Look at devices again and again from now on; answered by `Looked` each time."""

    backend: str
    devices: tuple[Device, ...]
    interval: float
    """Seconds from one look to the next."""
    patience: float
    """Seconds after which a device that does not answer is said to be late."""


@dataclass(frozen=True, slots=True)
class WatchBus:
    """Read the bus rates of these devices, and of no other, from now on."""

    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that were found."""

    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Looked:
    """One look at all watched devices."""

    samples: tuple[Sample, ...]
    """In the order in which they were asked for."""
    at: float
    """Monotonic time, which all processes of a machine share, of the newest look at any of them;
    minus infinity before the first."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The driver as a whole can't be asked; the probe ends."""

    problem: str


Request = Discover | Watch | WatchBus
Reply = Found | Looked | Broken


def pack(message: Request | Reply) -> bytes:
    """A message as it goes through the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body
