"""What a vendor's backend brings. To add a vendor, write one and name it in `registry.BACKENDS`.

A backend finds the vendor's devices, reads them (their processes included), knows which
environment variables show some of them to a process, and puts the driver's errors into words.
Everything else in gpu-panel works on the records that it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gpu_engine.devices.records import Device, Inventory, Sample


class DriverLost(Exception):
    """The driver as a whole can't be asked any more and has to be loaded afresh, in a new process.
    The text is for people."""


class Reader(ABC):
    """Reads one physical device again and again. Each reader is used by one thread."""

    bus = False
    """Whether the rates over the bus are read too, where that costs time."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """`devices`: the physical device itself, or the slices that it is cut into."""
        self.devices = tuple(devices)

    @abstractmethod
    def read(self) -> tuple[Sample, ...]:
        """One look: a sample for each of `devices`, in their order.

        What is not known is None. A device that can't be read has a sample with `problem`, and
        `lost` where the driver says that nothing can run on it; the next call tries again. Raises
        `DriverLost` alone.
        """


class Backend(ABC):
    """One vendor's devices. Has no state of its own; importing its module loads no driver."""

    name: ClassVar[str]
    """Its name in `registry.BACKENDS` and `Inventory.source`."""
    asks_driver: ClassVar[bool]
    """Whether `discover` and `read` call a driver, which may hang or crash. They are then called
    in the probe's process alone, each reader in a thread of its own."""
    variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that narrow which devices a process sees. The first one lists the
    devices. `discover` is given these and no others."""
    missing: ClassVar[str]
    """That the driver is not installed, in words: "there is no … driver library here"."""
    gone: ClassVar[str]
    """That the driver no longer lists a device, in words."""

    @abstractmethod
    def present(self) -> bool:
        """Whether this machine may have such devices at all. Calls no driver, never raises, and
        costs nothing worth naming: it runs in the panel."""

    @abstractmethod
    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """The devices that `environ` lets through, in the order in which the driver numbers them
        or `environ` lists them.

        A device that does not answer within `patience` seconds is listed with what is known of
        it. Does not raise: why there is nothing is the inventory's `problem`. See `nothing`.
        """

    @abstractmethod
    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each physical device of `devices`, found by `discover`, perhaps in another
        process. Raises `DriverLost`."""

    @abstractmethod
    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """The variables that show a process these devices, in this order, and no others of this
        vendor; for no devices, those that hide them all. `discover` with them finds `devices`."""

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        """Whether somebody set `variables` so as to hide all devices."""
        return False

    def nothing(self, environ: Mapping[str, str], problem: str | None = None) -> Inventory:
        """An inventory without devices, and why it has none."""
        narrowed = bool(self.variables) and self.variables[0] in environ
        return Inventory(
            (),
            self.name,
            problem=problem,
            inherited_visible=environ[self.variables[0]] if narrowed else None,
            visible_variable=self.variables[0] if narrowed else None,
            hidden=self.hides_all(environ),
        )
