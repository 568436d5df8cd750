"""The list of all backends, and loading one by its name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Literal

from gpu_engine.devices.backends.protocol import Backend
from gpu_engine.devices.records import Device

BACKENDS = {"nvml": "gpu_engine.devices.backends.nvidia.backend:Nvidia",
            "amd": "gpu_engine.devices.backends.amd.backend:Amd",
            "cpu": "gpu_engine.devices.backends.cpu:Cpu"}
""""module:Class" by name. Backends are tried in this order until one finds devices; the processor,
which is always there, comes last."""


@cache
def load(name: str) -> Backend:
    """The backend of that name (`Inventory.source`). Raises ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"there is no device backend {name!r}; there are {', '.join(BACKENDS)}")
    module, _, cls = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), cls)()


def drivers() -> list[str]:
    """The names of the backends whose devices may be on this machine, the processor left out."""
    return [name for name in BACKENDS if load(name).asks_driver and load(name).present()]


def environment(name: str, devices: Sequence[Device]) -> dict[str, str]:
    """The environment variables for a process that uses `devices` of the backend `name`. A process
    on CPU slots gets variables that hide the GPUs of all vendors."""
    own = load(name)
    found: dict[str, str] = {}
    if not own.asks_driver:
        for other in BACKENDS:
            found |= load(other).environment(()) if other != name else {}
    return found | own.environment(devices)


def torch_type(name: str) -> Literal["cuda", "cpu"]:
    """The type that torch has for devices of the backend `name`: "cuda", as NVIDIA's and AMD's are,
    or "cpu"."""
    return "cpu" if name == "cpu" else "cuda"
