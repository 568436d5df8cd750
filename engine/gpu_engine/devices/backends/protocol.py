"""The base classes of a vendor's backend. To add a vendor, write one and list it in
`registry.BACKENDS`.

A backend finds the vendor's devices, reads them (their processes included), knows the environment
variables that make some of them visible to a process, and puts the driver's errors into words.
Everything else in gpu-panel works on the records that it returns.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gpu_engine.devices.records import Device, Inventory, Sample

_NONE = re.compile(r"\s*(-\d.*|none|void|nodevfiles|)\s*", re.IGNORECASE | re.DOTALL)


def hides_all(value: str | None) -> bool:
    """Whether the value of a variable that lists devices hides all of them on purpose. One that
    only names none, as "all" or a list in quotes, is a mistake."""
    return value is not None and _NONE.fullmatch(value) is not None


class DriverLost(Exception):
    """The driver can't be used any more until a new process loads it again. The text is for
    people."""


class Reader(ABC):
    """Reads one physical device again and again. Each reader is used by one thread."""

    bus = False
    """Whether to read the rates over the bus too. If that takes long, it is done only on demand."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """`devices`: the physical device itself, or the slices that it is divided into."""
        self.devices = tuple(devices)

    @abstractmethod
    def read(self) -> tuple[Sample, ...]:
        """Read a sample of each of `devices`, in their order.

        A value that is not known is None. If a device can't be read, its sample has a `problem`,
        and `lost` if the driver says that nothing can run on it; the next call tries again. Raises
        nothing but `DriverLost`.
        """


class Backend(ABC):
    """One vendor's devices. Has no state of its own; importing its module loads no driver."""

    name: str
    """Its name in `registry.BACKENDS` and `Inventory.source`."""
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
        """Open a reader for each physical device among `devices`, which `discover` has found,
        perhaps in another process. Raises `DriverLost`."""

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """The variables with which a process sees these devices, in this order, and no others of
        this vendor. For no devices: the variables that hide all of them. `discover`, given these
        variables, finds exactly `devices`. None of a backend that has no such variables."""
        return {}

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        """Whether the values of `variables` in `environ` hide all devices on purpose."""
        return False

    def nothing(self, environ: Mapping[str, str], problem: str | None = None) -> Inventory:
        """An inventory without devices. `problem`: why there are none, if that needs saying."""
        narrowed = bool(self.variables) and self.variables[0] in environ
        return Inventory((), self.name, problem=problem,
                         inherited_visible=environ[self.variables[0]] if narrowed else None,
                         visible_variable=self.variables[0] if narrowed else None,
                         hidden=self.hides_all(environ))
