"""The one list of backends, and how one is found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache

from gpu_engine.devices.backends.protocol import Backend
from gpu_engine.devices.records import Device

BACKENDS = {
    "nvml": "gpu_engine.devices.backends.nvidia.backend:Nvidia",
    "cpu": "gpu_engine.devices.backends.cpu:Cpu",
}
"""Name → "module:Class". Devices are looked for in this order, and the first backend that finds
any is taken; the processor, which is always there, comes last."""


def load(name: str) -> Backend:
    """The backend of that name (`Inventory.source`). Raises ValueError for an unknown one."""
    if name not in BACKENDS:
        raise ValueError(f"there is no device backend {name!r}; there are {', '.join(BACKENDS)}")
    return load_reference(BACKENDS[name])


@cache
def load_reference(reference: str) -> Backend:
    """The backend of a "module:Class", as another process names it."""
    module, _, name = reference.partition(":")
    found = getattr(importlib.import_module(module), name)()
    if not isinstance(found, Backend):
        raise TypeError(f"{reference} is no Backend")
    return found


def environment(name: str, devices: Sequence[Device]) -> dict[str, str]:
    """The variables for a process that is to use `devices` of the backend `name`. One that is to
    use the processor sees no GPU of any vendor."""
    own = load(name)
    found: dict[str, str] = {}
    if not own.asks_driver:
        for other in BACKENDS:
            found |= load(other).environment(()) if other != name else {}
    return found | own.environment(devices)
