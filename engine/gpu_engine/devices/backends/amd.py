"""AMD's GPUs, through the files of their kernel driver (amdgpu and its compute part, the KFD).

AMD's own library (amdsmi) is never imported: beside ROCm's torch it made
`torch.cuda.device_count()` return 0 (pytorch/pytorch#186516). The kernel's files tell as much;
their names and units are those of its Documentation/gpu/amdgpu, Documentation/hwmon/sysfs-interface
and drivers/gpu/drm/amd/amdkfd/kfd_topology.c.

ROCm numbers its devices in the order of the topology's nodes, leaving out those without SIMDs
(processors) and those whose render node does not exist or is not allowed here, as in a container
(libhsakmt's topology.c). Card numbers play no part. Devices are found and read in the probe, in a
thread for each card, as any file of a driver may hang its reader.

A card that is divided into partitions (CPX) is not offered: the driver has figures of whole cards
only, and nothing would tell which partition is free.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from gpu_engine.devices.backends import visible
from gpu_engine.devices.backends.registry import (
    PROCESSES_EVERY,
    Backend,
    DriverLost,
    GpuReader,
    Reader,
)
from gpu_engine.devices.host import Owners
from gpu_engine.devices.records import Device, DeviceProcess, Inventory, Sample

HELD = 64 << 20
"""Bytes of its memory from which a process without a queue counts as being on a device. ROCm
prepares a little on every device that it sees, also on those that the process never uses."""
_KFD, _NODES = "sys/class/kfd/kfd", "sys/class/kfd/kfd/topology/nodes"
_PCI = "sys/bus/pci/devices"
_GIVE = "a container needs --device=/dev/kfd --device=/dev/dri"
_NOT_LOADED = f"the compute part of the amdgpu driver is not loaded ({_GIVE})"
_LOST = "lost: the driver can't reach it (dmesg says why); a reset or a reboot brings it back"
_MOST = 1 << 48
"""The highest number that can be true: bytes, microwatts, thousandths of a degree."""


def read_file(path: Path) -> bytes:
    """What a file says; the kernel gives a page at most. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def usable(path: Path) -> bool:
    """Whether this user may read and write a device file. It is not opened, which would wake the
    GPU."""
    return os.access(path, os.R_OK | os.W_OK)


class Folder:
    """A folder of the driver's files below `root`, which is "/" of a real machine."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        self.errors: set[int | None] = set()
        """Of the files that could not be read."""

    def names(self) -> list[str]:
        """The names of what is numbered in it, in the order of the numbers."""
        try:
            return sorted(filter(str.isdecimal, os.listdir(self.path)), key=int)  # noqa: PTH208
        except OSError:
            return []

    def text(self, name: str) -> str | None:
        """What a file says, without blanks around it; None if it can't be read or is empty."""
        try:
            content = read_file(self.path / name)
        except OSError as error:
            self.errors.add(error.errno)
            return None
        return content.decode(errors="replace").strip() or None

    def number(self, name: str, most: int = _MOST) -> int | None:
        """The number in a file; None if there is none, or none that can be true."""
        return _whole(self.text(name), most)

    def table(self, name: str) -> dict[str, int]:
        """The numbers of a file with lines such as "simd_count 304"."""
        pairs = (line.partition(" ") for line in (self.text(name) or "").splitlines())
        return {key: number for key, _, value in pairs
                if (number := _whole(value.strip(), 1 << 64)) is not None}


def _whole(text: str | None, most: int) -> int | None:
    """A decimal number up to `most`; None for anything else."""
    if text is None or not re.fullmatch("[0-9]{1,20}", text):
        return None
    return number if (number := int(text)) <= most else None


@dataclass(frozen=True)
class Card:
    """A GPU, and where its files are."""

    device: Device
    node: str
    """Its folder in the topology."""
    gpu_id: int
    """The KFD's number of it, by which it is named in the files of processes."""
    folder: str
    """Its folder on the bus."""
    render: str
    """Its render node, below /dev."""


def find(root: Path) -> list[Card]:
    """All whole GPUs that ROCm can see, with its numbers."""
    nodes = []
    for name in Folder(root, _NODES).names():
        node = Folder(root, f"{_NODES}/{name}")
        gpu_id, properties = node.number("gpu_id"), node.table("properties")
        if gpu_id == 0 or (properties and not properties.get("simd_count")):
            continue  # a processor
        render = f"dri/renderD{properties.get('drm_render_minor')}"
        if not properties or not (root / "dev" / render).exists():
            continue  # what a container may not use can't even be read
        # location_id is bus and device in 8 and 5 bits. Below them, or in the highest four, stands
        # the partition (rocm_smi_main.cc).
        place = properties.get("location_id", 0)
        address = f"{properties.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}"
        nodes.append((f"{_NODES}/{name}", gpu_id or 0, properties, render, f"{address}.0"))
    nodes_of = Counter(address for *_, address in nodes)
    cards = []
    for index, (node_folder, gpu_id, properties, render, address) in enumerate(nodes):
        if nodes_of[address] > 1:
            continue
        folder = Folder(root, f"{_PCI}/{address}")
        # Without a number of its own, a card is known by its place, which presets can keep as well.
        serial = properties.get("unique_id", 0)
        uuid = f"GPU-{serial:016x}" if serial else f"PCI-{address}"
        # A server's card names itself; of others, the architecture is known.
        name, version = folder.text("product_name"), properties.get("gfx_target_version", 0)
        if name is None or not name.isprintable():
            name = f"AMD GPU gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        device = Device(str(index), "gpu", name, index=index, uuid=uuid,
                        memory_total=folder.number("mem_info_vram_total") or None)
        cards.append(Card(device, node_folder, gpu_id, f"{_PCI}/{address}", render))
    return cards


class Amd(Backend):
    """GPUs as the compute part of the amdgpu driver (KFD) shows them."""

    name = "amd"
    asks_driver = True
    variables = (visible.ROCR, *visible.HIP)
    cleared = (*visible.HIP, "GPU_DEVICE_ORDINAL")
    missing = "there is no AMD GPU here any more, or its driver is not loaded"
    gone = "GPU is gone: the driver no longer lists it"
    root: ClassVar[Path] = Path("/")
    """Below which the kernel's files are."""

    def present(self) -> bool:
        """Whether the driver is loaded."""
        return any((self.root / folder).is_dir() for folder in ("sys/module/amdgpu", _KFD))

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs that ROCm's variables in `environ` make visible."""
        nothing, cards = self.nothing(environ), find(self.root)
        offered, problem = visible.rocm([c.device for c in cards], environ), None
        if not (self.root / _KFD).is_dir():
            problem = _NOT_LOADED
        elif not cards:
            problem = f"no AMD GPU can be used from here ({_GIVE}), or all are divided (CPX)"
        elif not offered:
            problem = (f'{nothing.visible_variable} is "{nothing.inherited_visible}" here, which '
                       "makes no device visible")
        # The kernel's own driver has no version; AMD's package has.
        version = Folder(self.root, "sys/module/amdgpu").text("version")
        return replace(nothing, devices=offered, problem=problem, driver=version)

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each device. Raises `DriverLost`."""
        if not Folder(self.root, _NODES).names():
            raise DriverLost(_NOT_LOADED)
        owners = Owners()
        return [AmdReader(self.root, device, owners) for device in devices]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """ROCR_VISIBLE_DEVICES for these devices: by UUID, as indices change when a card falls off
        the bus; by index where ROCm knows no UUID.

        ROCm reads it before all other variables of this kind, and they count in its new numbers:
        those that a process may inherit are taken away (`cleared`).
        """
        names = [d.uuid if d.uuid and d.uuid.startswith("GPU-") else str(d.index) for d in devices]
        return {visible.ROCR: ",".join(names)}

    def deciding(self, environ: Mapping[str, str]) -> str | None:
        return next((v for v in self.variables if v in environ), None)

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return any(visible.hides_all(environ[v]) for v in visible.rocms(environ))


class AmdReader(GpuReader):
    """Reads one GPU."""

    def __init__(self, root: Path, device: Device, owners: Owners) -> None:
        self._root, self._owners = root, owners
        self._card: Card | None = None
        super().__init__(device)

    def read(self) -> tuple[Sample, ...]:
        """Read a sample. Raises `DriverLost`."""
        if not Folder(self._root, _NODES).names():
            raise DriverLost(_NOT_LOADED)
        card = self._card
        if card is None or Folder(self._root, card.node).number("gpu_id") != card.gpu_id:
            # Not known yet, or not where it was. Only then other cards' files are read, as theirs
            # may hang.
            self._card = card = next((c for c in find(self._root)
                                      if c.device.uuid == self.device.uuid), None)
        if card is None:
            return self.failed(Amd.gone, lost=True)
        for name in ("kfd", card.render):
            if not usable(self._root / "dev" / name):
                return self.failed(f"this user may not use /dev/{name} (sudo usermod -aG "
                                   f"render,video $USER, then log in again; {_GIVE})", lost=True)
        folder = Folder(self._root, card.folder)
        values: dict[str, Any] = {
            "taken": time.time(), "memory_total": folder.number("mem_info_vram_total") or None,
            "memory_used": folder.number("mem_info_vram_used")}
        if folder.text("power/runtime_status") in ("suspended", "suspending"):
            # To read its sensors would wake it (before Linux 6.15) or fail. It does nothing, which
            # is known without reading it; its memory the driver counts itself.
            values |= {"utilization": 0.0, "power": None, "temperature": None}
        else:
            busy = folder.number("gpu_busy_percent", 100)
            if folder.errors & {errno.ENODEV, errno.ENXIO, errno.EIO}:
                return self.failed(_LOST, lost=True)
            # Cards without a cooler of their own (Instinct) have no temperature of an edge, but one
            # of their hottest place, and newer ones the power of the moment only.
            at = next((f"hwmon/{path.name}/" for path in folder.path.glob("hwmon/hwmon*")), "")
            heat, power = (
                next(filter(None, (folder.number(at + name) for name in names)), None)
                for names in (("temp1_input", "temp2_input"), ("power1_average", "power1_input")))
            values |= {"utilization": None if busy is None else busy / 100,
                       "temperature": None if heat is None else heat / 1000,
                       "power": None if power is None else power / 1e6}
        if self.due(PROCESSES_EVERY):
            values["processes"] = self._processes(card)
        return self.update(values)

    def _processes(self, card: Card) -> tuple[DeviceProcess, ...] | None:
        """The processes on a device; None if the driver does not say.

        The KFD lists every process that has opened it, on every GPU. On this one is who has a queue
        there, or holds memory of it worth mentioning.
        """
        listed, present = Folder(self._root, f"{_KFD}/proc"), []
        if not listed.path.is_dir():
            return None
        for pid in listed.names():
            process = Folder(listed.path, pid)
            memory = process.number(f"vram_{card.gpu_id}")
            if (memory or 0) >= HELD or any(
                    process.number(f"queues/{queue}/gpuid") == card.gpu_id
                    for queue in Folder(process.path, "queues").names()):
                present.append(self._owners.process(int(pid), memory, "compute"))
        return tuple(present)
