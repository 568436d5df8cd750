"""AMD's GPUs, through the files of their kernel driver (amdgpu and its compute part, the KFD).

AMD's own library (amdsmi) is never imported: beside ROCm's torch it made
`torch.cuda.device_count()` return 0 (pytorch/pytorch#186516). The kernel's files tell as much;
their names and units are those of its Documentation/gpu/amdgpu, Documentation/hwmon/sysfs-interface
and drivers/gpu/drm/amd/amdkfd/kfd_topology.c.

ROCm numbers its devices in the order of the topology's nodes, leaving out those without SIMDs
(processors) and those whose render node does not exist or is not allowed here, as in a container
(libhsakmt's topology.c). Card numbers play no part. Devices are found and read in the probe, in a
thread for each card, as any file of a driver may hang its reader. A card that sleeps is not woken.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from gpu_engine.devices.backends import visible
from gpu_engine.devices.backends.registry import (
    PROCESSES_EVERY,
    SLOW_EVERY,
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
ASLEEP = "it sleeps, and the first process that uses it wakes it"
_KFD, _NODES = "sys/class/kfd/kfd", "sys/class/kfd/kfd/topology/nodes"
_PCI = "sys/bus/pci/devices"
_GIVE = "a container needs --device=/dev/kfd --device=/dev/dri"
_NOT_LOADED = f"the amdgpu driver is not loaded (try: sudo modprobe amdgpu; {_GIVE})"
_LOST = ("GPU is lost: the driver can't reach it (see dmesg; a reset of the GPU or a reboot brings "
         "it back)")
_MOST_MEMORY, _MOST_CLOCK, _MOST_POWER = 1 << 48, 20_000_000_000, 10_000_000_000
_SPEEDS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5,
           "64.0": 6, "64": 6}
"""Generations of PCI Express by GT/s, as the kernel writes them."""


class Tree:
    """The folder that holds `sys` and `dev`: of a real machine, "/"."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def read(self, path: Path) -> bytes:
        """What a file says; the kernel gives a page at most. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 1 << 16)
        finally:
            os.close(fd)

    def usable(self, path: Path) -> bool:
        """Whether this user may read and write a device file. It is not opened, which would wake
        the GPU."""
        return os.access(path, os.R_OK | os.W_OK)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, numbers in their order; none if it can't be read."""
        try:
            return sorted(os.listdir(self.root / folder),  # noqa: PTH208
                          key=lambda name: (len(name), name) if name.isdecimal() else (99, name))
        except OSError:
            return []


class Look:
    """One look at the files of a folder: what they say, and the errors of those that can't be
    read."""

    def __init__(self, tree: Tree, folder: str) -> None:
        self.tree, self.folder = tree, folder
        self.begin()

    def begin(self) -> None:
        """Forget which files could be read."""
        self.answered, self.errors = False, set[int | None]()

    def text(self, name: str) -> str | None:
        """What a file says, without blanks around it; None if it can't be read or is empty."""
        try:
            content = self.tree.read(self.tree.root / self.folder / name)
        except OSError as error:
            self.errors.add(error.errno)
            return None
        self.answered = True
        return content.decode(errors="replace").strip() or None

    def number(self, name: str, most: int = _MOST_MEMORY, least: int = 0) -> int | None:
        """The number in a file; None if there is none, or none that can be true."""
        return _whole(self.text(name), most, least)

    def table(self, name: str, separator: str = " ") -> dict[str, int]:
        """The numbers of a file with lines such as "simd_count 304"."""
        pairs = (line.partition(separator) for line in (self.text(name) or "").splitlines())
        return {key.strip(): number for key, _, value in pairs
                if (number := _whole(value.strip(), 1 << 64)) is not None}

    @property
    def asleep(self) -> bool:
        """Whether the card sleeps. To read its sensors then wakes it (before Linux 6.15) or
        fails."""
        return self.text("power/runtime_status") in ("suspended", "suspending")

    @cached_property
    def sensors(self) -> str:
        """The folder of the card's sensors, "hwmon/hwmon3"."""
        return next((f"hwmon/{name}" for name in self.tree.names(f"{self.folder}/hwmon")
                     if self.text(f"hwmon/{name}/name") == "amdgpu"), "hwmon/none")

    def memory_is_hosts(self) -> bool:
        """Whether the GPU is a part of the processor that works in the machine's memory. Only such
        parts report the voltage "vddnb" (amdgpu's thermal documents). One that the firmware has
        given most of the memory is a GPU with memory of its own to us."""
        return self.text(f"{self.sensors}/in1_label") == "vddnb" and (
            self.number("mem_info_vram_total") or 0) < (self.number("mem_info_gtt_total") or 0)


def _whole(text: str | None, most: int, least: int = 0) -> int | None:
    """A decimal number from `least` to `most`; None for anything else."""
    if text is None or not re.fullmatch("[0-9]{1,20}", text):
        return None
    return number if least <= (number := int(text)) <= most else None


@dataclass(frozen=True)
class Found:
    """A GPU, or one of the partitions that a card is divided into, and where its files are."""

    device: Device
    node: str
    """Its folder in the topology."""
    gpu_id: int
    """The KFD's number of it, by which it is named in the files of processes."""
    card: str
    """The folder of its card on the bus."""
    divided: bool
    render: str
    """Its render node, below /dev."""


def find(tree: Tree) -> tuple[list[Found], int]:
    """All GPUs that ROCm can see, in its order, and how many it can't because they are not
    accessible here."""
    nodes, hidden = [], 0
    for name in filter(str.isdecimal, tree.names(_NODES)):
        look = Look(tree, f"{_NODES}/{name}")
        gpu_id, properties = look.number("gpu_id"), look.table("properties")
        if gpu_id == 0 or (properties and not properties.get("simd_count")):
            continue  # a processor
        render = f"dri/renderD{properties.get('drm_render_minor')}"
        if not properties or not (tree.root / "dev" / render).exists():
            hidden += 1  # what a container may not use can't even be read
            continue
        # location_id is bus, device and function in 8, 5 and 3 bits, and the partition in the
        # highest four; older drivers put it where the function is (rocm_smi_main.cc).
        place = properties.get("location_id", 0)
        bus = f"{properties.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}"
        address, part = f"{bus}.{place & 7}", place >> 28 & 15
        if place & 7 and not part and not (tree.root / _PCI / address).exists():
            address, part = f"{bus}.0", place & 7
        nodes.append((look, gpu_id or 0, properties, render, address, part))
    cards = Counter(address for *_, address, _ in nodes)
    serials = Counter(properties.get("unique_id", 0) for _, _, properties, *_ in nodes)
    found = []
    for index, (look, gpu_id, properties, render, address, part) in enumerate(nodes):
        card, divided = Look(tree, f"{_PCI}/{address}"), cards[address] > 1
        # Without a number of its own, a card is known by its place, which presets can keep as well.
        serial = properties.get("unique_id", 0)
        uuid = f"GPU-{serial:016x}" if serial else f"PCI-{address}"
        name, memory = _model(card, properties), None
        if divided:
            name += f" {card.text('current_compute_partition') or 'partition'} {part}"
            uuid += "" if serial and serials[serial] == 1 else f"/{part}"
        elif not card.memory_is_hosts():
            memory = card.number("mem_info_vram_total", least=1)
        found.append(Found(
            Device(str(index), "gpu", name, index=index, uuid=uuid, memory_total=memory),
            look.folder, gpu_id, card.folder, divided, render))
    return found, hidden


def _model(card: Look, properties: Mapping[str, int]) -> str:
    """The model: from the card itself (server cards), from libdrm's list, which has lines of
    "744C,	C8,	AMD Radeon RX 7900 XTX", or by its architecture."""
    own = card.text("product_name")
    if own is not None and own.isprintable():
        return own
    revision = (card.text("revision") or "").removeprefix("0x")
    line = re.compile(rf"^{properties.get('device_id', 0):x},\s*{re.escape(revision)},\s*(\S.*)$",
                      re.IGNORECASE | re.MULTILINE)
    for place in ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"):
        try:
            listed = line.search((card.tree.root / place).read_text(errors="replace"))
        except OSError:
            continue
        if listed:
            return listed[1] if "AMD" in listed[1] else f"AMD {listed[1]}"
    version = properties.get("gfx_target_version", 0)
    return f"AMD GPU gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


class Amd(Backend):
    """GPUs and partitions as the compute part of the amdgpu driver (KFD) shows them."""

    name = "amd"
    asks_driver = True
    variables = (visible.ROCR, *visible.HIP)
    cleared = (*visible.HIP, "GPU_DEVICE_ORDINAL")
    missing = "there is no AMD GPU here any more"
    gone = "GPU is gone: the driver no longer lists it"
    tree: ClassVar[Tree] = Tree()
    """Where the kernel's files are."""

    def present(self) -> bool:
        """Whether the driver is loaded, or has a card that it could be loaded for."""
        return any((self.tree.root / folder).is_dir() for folder in ("sys/module/amdgpu", _KFD)) \
            or self._without_driver()

    def _without_driver(self) -> bool:
        """Whether there is a display or compute device of AMD's that no driver has taken."""
        looks = (Look(self.tree, f"{_PCI}/{address}") for address in self.tree.names(_PCI))
        return any(look.text("vendor") == "0x1002"
                   and re.match("0x0(300|302|380)|0x1200", look.text("class") or "")
                   and not (self.tree.root / look.folder / "driver").exists() for look in looks)

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the GPUs that ROCm's variables in `environ` make visible."""
        nothing, (found, hidden) = self.nothing(environ), find(self.tree)
        if not found and not hidden:
            return replace(nothing, problem=_NOT_LOADED if self._without_driver() else None)
        offered, problem = visible.rocm([f.device for f in found], environ), None
        if not found:
            problem = (f"AMD GPUs in this machine that can't be used from here: {hidden}, as "
                       f"/dev/dri has no render node for them ({_GIVE})")
        elif not offered:
            problem = (f'{nothing.visible_variable} is "{nothing.inherited_visible}" here, which '
                       f"makes none of the {len(found)} devices visible")
        # The kernel's own driver has no version; AMD's package has.
        version = Look(self.tree, "sys/module/amdgpu").text("version")
        return replace(nothing, devices=offered, problem=problem, driver=version)

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        """A reader for each device. Raises `DriverLost`."""
        if not self.tree.names(_NODES):
            raise DriverLost(_NOT_LOADED)
        owners = Owners(device_files="/dev/kfd")
        return [AmdReader(self.tree, device, owners) for device in devices]

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """ROCR_VISIBLE_DEVICES for these devices: by UUID, as indices change when a card falls off
        the bus; by index where ROCm knows no UUID.

        ROCm reads it before all other variables of this kind, and they count in its new numbers:
        those that a process may inherit are taken away (`cleared`).
        """
        names = [d.uuid if re.fullmatch("GPU-[^/]+", d.uuid or "") else str(d.index)
                 for d in devices]
        return {visible.ROCR: ",".join(dict.fromkeys(map(str, names)))}

    def deciding(self, environ: Mapping[str, str]) -> str | None:
        return next((v for v in self.variables if v in environ), None)

    def hides_all(self, environ: Mapping[str, str]) -> bool:
        return any(visible.hides_all(environ[v]) for v in visible.rocms(environ))


_EACH_SECOND = {
    "utilization": (("gpu_busy_percent",), 100, 100),
    "memory_utilization": (("mem_busy_percent",), 100, 100),
    # Newer cards and kernels have the power of the moment only.
    "power": (("{}/power1_average", "{}/power1_input"), _MOST_POWER, 1e6),
    "clock_sm": (("{}/freq1_input",), _MOST_CLOCK, 1),
    "clock_memory": (("{}/freq2_input",), _MOST_CLOCK, 1),
}
_RARELY = {
    "power_limit": (("{}/power1_cap",), _MOST_POWER, 1e6),
    "fan": (("{}/pwm1",), 255, 255),
    "pcie_width": (("current_link_width",), 64, 1),
}
"""By a field of `Sample`: the files of which the first with a number counts ("{}" is the folder of
the sensors), the highest number that can be true, and by what it is divided."""


def _values(look: Look, rows: Mapping[str, tuple[tuple[str, ...], int, float]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field, (files, most, per) in rows.items():
        number = next((n for file in files
                       if (n := look.number(file.format(look.sensors), most)) is not None), None)
        values[field] = number if number is None or per == 1 else number / per
    return values


class AmdReader(GpuReader):
    """Reads one GPU, or one partition of a card."""

    def __init__(self, tree: Tree, device: Device, owners: Owners) -> None:
        self._tree, self._owners = tree, owners
        super().__init__(device)

    def forget(self) -> None:
        super().forget()
        self._found: Found | None = None

    def read(self) -> tuple[Sample, ...]:
        """Read a sample. Raises `DriverLost`."""
        if not self._tree.names(_NODES):
            raise DriverLost("the amdgpu driver is not loaded any more")
        found = self._found
        if found is None or Look(self._tree, found.node).number("gpu_id") != found.gpu_id:
            self.forget()  # it is not known yet, or not where it was
            self._found = found = next((f for f in find(self._tree)[0]
                                        if f.device.uuid == self.device.uuid), None)
        if found is None:
            return self.failed(Amd.gone, lost=True)
        for name in ("kfd", found.render):
            path = self._tree.root / "dev" / name
            if not path.exists():
                return self.failed(f"/dev/{name} is not there ({_GIVE})", lost=True)
            if not self._tree.usable(path):
                return self.failed(f"this user may not use /dev/{name} (sudo usermod -aG "
                                   "render,video $USER, then log in again)", lost=True)
        look = Look(self._tree, found.card)
        values: dict[str, Any] = {"taken": time.time()}
        if asleep := look.asleep:
            # It does nothing, which is known without reading it. How much of its memory is taken
            # the driver keeps count of itself. All is read when it wakes.
            hosts = self.last.memory_is_hosts
            self.forget()
            self._found = found
            values |= _memory(look) | {"utilization": 0.0, "notes": (ASLEEP,),
                                       "memory_is_hosts": hosts}
        else:
            look.sensors  # noqa: B018  its name is no answer of the card
            look.begin()
            values |= {"notes": ()} | _memory(look) | _values(look, _EACH_SECOND)
            if not look.answered:
                gone = bool(look.errors & {errno.ENODEV, errno.ENXIO, errno.EIO})
                busy = look.errors & {errno.EBUSY, errno.EAGAIN}
                if look.asleep:  # it has just fallen asleep
                    return self.read()
                if gone or busy:
                    return self.failed(_LOST, lost=gone)
            if self.due(PROCESSES_EVERY):
                values["temperature"] = _temperature(look)
            if self.due(SLOW_EVERY):
                values |= _slow(look)
        if self.due(PROCESSES_EVERY):
            values["processes"] = self._processes(found)
        if values.get("memory_is_hosts", self.last.memory_is_hosts):
            values |= {"memory_used": None, "memory_total": None}
        if found.divided:  # the driver has these of whole cards only
            values |= dict.fromkeys(("utilization", "memory_utilization", "memory_used",
                                     "memory_total", "power", "power_limit"))
        samples = self.update(values)
        if asleep:
            self._next = dict.fromkeys(self._next, -math.inf)
        return samples

    def _processes(self, found: Found) -> tuple[DeviceProcess, ...] | None:
        """The processes on a device; None if the driver does not say.

        The KFD lists every process that has opened it, on every GPU. On this one is who has a queue
        there, or holds memory of it worth mentioning.
        """
        folder, present = f"{_KFD}/proc", []
        if not (self._tree.root / folder).is_dir():
            return None
        for pid in filter(str.isdecimal, self._tree.names(folder)):
            look = Look(self._tree, f"{folder}/{pid}")
            memory = look.number(f"vram_{found.gpu_id}")
            if (memory or 0) < HELD and not any(
                    look.number(f"queues/{queue}/gpuid") == found.gpu_id
                    for queue in self._tree.names(f"{look.folder}/queues")):
                continue
            present.append(self._owners.process(int(pid), memory, "compute"))
        return tuple(present)


def _memory(look: Look) -> dict[str, Any]:
    total = look.number("mem_info_vram_total", least=1)
    return {"memory_total": total, "memory_used": look.number("mem_info_vram_used", total or -1)}


def _temperature(look: Look) -> float | None:
    """Degrees of the GPU's edge, or else of its hottest place, as cards without a cooler of their
    own (Instinct) have no other; the files hold thousandths."""
    by_label = {}
    for number in (1, 2, 3):
        path = f"{look.sensors}/temp{number}"
        label = look.text(f"{path}_label") or ("edge" if number == 1 else "")
        by_label[label] = look.number(f"{path}_input", 200_000)
    value = by_label.get("edge")
    value = by_label.get("junction") if value is None else value
    return None if value is None else value / 1000


def _slow(look: Look) -> dict[str, Any]:
    errors = look.table("ras/umc_err_count", ":")
    # Clocks are lists such as "0: 500Mhz".
    clocks = [[int(n) * 1_000_000 for n in re.findall(
        r"\b([0-9]{1,5})mhz", look.text(file) or "", re.IGNORECASE)]
        for file in ("pp_dpm_sclk", "pp_dpm_mclk")]
    uncorrected = errors.get("ue")
    return _values(look, _RARELY) | {
        "memory_is_hosts": look.memory_is_hosts(),
        "pcie_generation": _SPEEDS.get((look.text("current_link_speed") or "").partition(" ")[0]),
        "clock_sm_max": max(clocks[0], default=None),
        "clock_memory_max": max(clocks[1], default=None),
        "ecc_corrected": errors.get("ce"), "ecc_uncorrected": uncorrected,
        "health": (f"{uncorrected} uncorrected memory errors since the driver was loaded",)
        if uncorrected else ()}
