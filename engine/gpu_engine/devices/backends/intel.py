"""Intel's discrete GPUs, by the kernel's files of the drivers xe and i915.

Only discrete ones have a folder of sensors (Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon
and -i915-hwmon): energy, the power limit, with newer kernels temperatures. The drivers tell neither
utilisation nor memory nor processes there, so these are unknown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from gpu_engine.common.frozen import frozen
from gpu_engine.devices.backends.protocol import Backend, Reader
from gpu_engine.devices.backends.sysfs import Look, Tree, names_in
from gpu_engine.devices.records import Device, Inventory, Sample

_DRIVERS = ("xe", "i915")
_GONE = "GPU is gone: the driver no longer lists it"


@frozen(slots=True)
class _Card:
    address: str
    sensors: str
    """The folder of its sensors, below its folder on the bus."""


class Intel(Backend):
    """GPUs as the kernel shows them. They are numbered by their place on the bus."""

    name = "intel"
    asks_driver = True
    variables = ("ZE_AFFINITY_MASK",)
    cleared = ("ONEAPI_DEVICE_SELECTOR",)
    missing = "there is no discrete GPU of Intel's here any more"
    gone = _GONE
    tree: ClassVar[Tree] = Tree()
    """Where the kernel's files are."""

    def present(self) -> bool:
        """Whether one of the drivers is loaded and has a discrete GPU. Most laptops have the driver
        for the screen alone: no probe is started for them."""
        return any((self.tree.root / "sys/module" / name).is_dir() for name in _DRIVERS) \
            and bool(_cards(self.tree))

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs; a list of numbers in ZE_AFFINITY_MASK chooses among them."""
        found = [_device(self.tree, index, card) for index, card in enumerate(_cards(self.tree))]
        mask = environ.get("ZE_AFFINITY_MASK")
        if mask is not None:
            chosen = {int(m[1]) for part in mask.split(",")
                      if (m := re.fullmatch(r"\s*(\d+)(\.\d+)?\s*", part))}
            found = [replace(d, visible_index=i)
                     for i, d in enumerate(d for d in found if d.index in chosen)]
        return replace(self.nothing(environ), devices=tuple(found))

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        return [IntelReader(self.tree, device) for device in devices]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """Level Zero's mask of devices, and the order that makes its numbers ours. No value of it
        hides all: an empty one shows all."""
        if not devices:
            return {}
        return {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
                "ZE_AFFINITY_MASK": ",".join(dict.fromkeys(str(d.index) for d in devices))}


class IntelReader(Reader):
    """Reads one GPU. Power is the energy between two readings."""

    def __init__(self, tree: Tree, device: Device) -> None:
        super().__init__([device])
        self._tree = tree
        self._before: tuple[float, int] | None = None

    def read(self) -> tuple[Sample, ...]:
        """Read the sensors, unless the card sleeps: to ask them would wake it."""
        (device,) = self.devices
        taken = time.time()
        card = next((c for c in _cards(self._tree) if f"PCI-{c.address}" == device.uuid), None)
        if card is None:
            return (Sample(device, problem=_GONE, lost=True, taken=taken),)
        look = Look(self._tree, self._tree.pci / card.address)
        if look.text("power/runtime_status") in ("suspended", "suspending"):
            self._before = None
            return (Sample(device, taken=taken, notes=("it sleeps",)),)
        limit = look.number(f"{card.sensors}/power1_max", 10_000_000_000, 1)
        warmth = look.number(f"{card.sensors}/temp2_input", 200_000)
        return (Sample(device, taken=taken, power=self._power(look, card),
                       power_limit=limit / 1e6 if limit is not None else None,
                       temperature=warmth / 1000 if warmth is not None else None),)

    def _power(self, look: Look, card: _Card) -> float | None:
        energy, now = look.number(f"{card.sensors}/energy1_input", 1 << 63), time.monotonic()
        before, self._before = self._before, None if energy is None else (now, energy)
        if energy is None or before is None or now <= before[0] or energy < before[1]:
            return None
        power = (energy - before[1]) / 1e6 / (now - before[0])
        return power if power <= 10_000 else None


def _cards(tree: Tree) -> list[_Card]:
    """Intel's discrete GPUs, in the order of the bus."""
    found = []
    for address in names_in(tree.pci):
        look = Look(tree, tree.pci / address)
        if look.text("vendor") != "0x8086" or not (look.text("class") or "").startswith("0x03"):
            continue
        sensors = next((f"hwmon/{name}" for name in names_in(look.folder / "hwmon")
                        if look.text(f"hwmon/{name}/name") in _DRIVERS), None)
        if sensors is not None:
            found.append(_Card(address, sensors))
    return found


def _device(tree: Tree, index: int, card: _Card) -> Device:
    number = Look(tree, tree.pci / card.address).text("device") or ""
    name = f"Intel GPU {number.removeprefix('0x')}".strip()
    return Device(str(index), "gpu", name, index=index, uuid=f"PCI-{card.address}")
