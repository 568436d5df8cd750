"""What a vendor's backend is, the list of all backends, and loading one by its name.

A backend finds the vendor's devices, reads them (their processes included), knows the environment
variables that make some of them visible to a process, and puts the driver's errors into words.
Everything else in gpu-panel works on the records that it returns. To add a vendor, write a backend
and list it in `BACKENDS`.
"""

from __future__ import annotations

import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Literal

from gpu_engine.devices.records import Device, Inventory, Sample

BACKENDS = {"nvml": "gpu_engine.devices.backends.nvidia:Nvidia",
            "amd": "gpu_engine.devices.backends.amd:Amd",
            "cpu": "gpu_engine.devices.backends.cpu:Cpu"}
""""module:Class" by name. Backends are tried in this order until one finds devices; the processor,
which is always there, comes last."""

PROCESSES_EVERY, SLOW_EVERY = 2.0, 10.0
"""Seconds from one reading to the next of what changes slowly: processes and temperature; limits,
modes and health."""


class DriverLost(Exception):
    """The driver can't be used any more until a new process loads it again. The text is for
    people."""


class Backend(ABC):
    """One vendor's devices. Has no state of its own; importing its module loads no driver."""

    name: str
    """Its name in `BACKENDS` and `Inventory.source`."""
    asks_driver: ClassVar[bool]
    """Whether `discover` and `read` call a driver, which may hang or crash. They are then called
    only in the probe, each reader in a thread of its own."""
    variables: tuple[str, ...] = ()
    """The environment variables that restrict which devices a process sees. The first one lists
    the devices. `discover` gets these variables and no others."""
    cleared: ClassVar[tuple[str, ...]] = ()
    """Variables that a process on these devices must not inherit, as they would choose among them
    once more."""
    missing: str
    """The message if the driver is not installed: "there is no … driver library here"."""
    gone: str
    """The message if the driver no longer lists a device."""

    @abstractmethod
    def present(self) -> bool:
        """Whether this machine may have such devices at all. It runs in the panel: it must be
        quick, must not call a driver and must not raise."""

    @abstractmethod
    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the devices that `environ` makes visible, in the driver's order or in the order in
        which `environ` lists them.

        A device that does not answer within `patience` seconds is listed with what is known about
        it. Does not raise; if there are no devices, the inventory's `problem` says why. See
        `nothing`.
        """

    @abstractmethod
    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """Open readers for `devices`, which `discover` has found, perhaps in another process: of a
        driver, one for each. Raises `DriverLost`."""

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """The variables with which a process sees these devices, in this order, and no others of
        this vendor. For no devices: the variables that hide all of them. `discover`, given these
        variables, finds exactly `devices`. None of a backend that has no such variables."""
        return {}

    def deciding(self, environ: Mapping[str, str]) -> str | None:
        """The variable that restricts the devices, to name it to a person; None if none is set."""
        return next((v for v in self.variables[:1] if v in environ), None)

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        """Whether the values of `variables` in `environ` hide all devices on purpose."""
        return False

    def nothing(self, environ: Mapping[str, str], problem: str | None = None) -> Inventory:
        """An inventory without devices. `problem`: why there are none, if that needs saying."""
        variable = self.deciding(environ)
        return Inventory((), self.name, problem=problem, visible_variable=variable,
                         inherited_visible=environ[variable] if variable else None,
                         hidden=self.hides_all(environ))


class Reader(ABC):
    """Reads some devices again and again. Each reader is used by one thread."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)

    @abstractmethod
    def read(self) -> tuple[Sample, ...]:
        """Read a sample of each of `devices`, in their order.

        A value that is not known is None. If a device can't be read, its sample has a `problem`,
        and `lost` if the driver says that nothing can run on it; the next call tries again. Raises
        nothing but `DriverLost`.
        """


class GpuReader(Reader):
    """Reads one GPU, or one slice of it, and some figures more rarely than others."""

    def __init__(self, device: Device) -> None:
        super().__init__([device])
        self.device = device
        self.forget()

    def forget(self) -> None:
        """Forget what was read: the next reading begins from nothing."""
        self.last = Sample(self.device)
        self._next = {PROCESSES_EVERY: -math.inf, SLOW_EVERY: -math.inf}

    def due(self, every: float) -> bool:
        """Whether what is read every so many seconds is to be read now."""
        return time.monotonic() >= self._next[every]

    def update(self, values: Mapping[str, Any]) -> tuple[Sample]:
        """The sample with new `values`, by a field's name; the other fields are those of the
        reading before. Called last, so that a reading that failed is repeated whole."""
        self.last = replace(self.last, **values)
        now = time.monotonic()
        for every, next_time in self._next.items():
            if now >= next_time:
                self._next[every] = now + every - 0.5
        return (self.last,)

    def failed(self, problem: str, *, lost: bool) -> tuple[Sample]:
        """A sample that says why the device can't be read."""
        self.forget()
        return (Sample(self.device, problem=problem, lost=lost, taken=time.time()),)


@cache
def load(name: str) -> Backend:
    """The backend of that name (`Inventory.source`). Raises ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"there is no device backend {name!r}; there are {', '.join(BACKENDS)}")
    module, _, cls = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), cls)()


def environment(name: str, devices: Sequence[Device]) -> dict[str, str]:
    """The environment variables for a process that uses `devices` of the backend `name`. A process
    on CPU slots gets variables that hide the GPUs of all vendors."""
    own = load(name)
    hiding: dict[str, str] = {}
    if not own.asks_driver:
        for other in BACKENDS:
            hiding |= load(other).environment(()) if other != name else {}
    return hiding | own.environment(devices)


def torch_type(name: str) -> Literal["cuda", "cpu"]:
    """The type that torch has for devices of the backend `name`: "cuda", as NVIDIA's and AMD's are,
    or "cpu"."""
    return "cpu" if name == "cpu" else "cuda"
