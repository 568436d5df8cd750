"""The list of all backends, and loading one by its name."""

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
""""module:Class" by name. Backends are tried in this order until one finds devices; the processor,
which is always there, comes last."""


def load(name: str) -> Backend:
    """The backend of that name (`Inventory.source`). Raises ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"there is no device backend {name!r}; there are {', '.join(BACKENDS)}")
    return load_reference(BACKENDS[name])


@cache
def load_reference(reference: str) -> Backend:
    """The backend given as "module:Class", as the probe gets it. Raises TypeError if the class is
    not a backend."""
    module, _, name = reference.partition(":")
    found = getattr(importlib.import_module(module), name)()
    if not isinstance(found, Backend):
        raise TypeError(f"{reference} is not a Backend")
    return found


def environment(name: str, devices: Sequence[Device]) -> dict[str, str]:
    """The environment variables for a process that uses `devices` of the backend `name`. A process
    on CPU slots gets variables that hide the GPUs of all vendors."""
    own = load(name)
    found: dict[str, str] = {}
    if not own.asks_driver:
        for other in BACKENDS:
            found |= load(other).environment(()) if other != name else {}
    return found | own.environment(devices)
