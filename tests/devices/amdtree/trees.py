"""Makes the kernel's files of machines with AMD GPUs, as they are on real ones.

Names, numbers and links follow captures (properties of MI300X in CPX mode, in the test data of
AMD's device plugin for Kubernetes) and Documentation/gpu/amdgpu of the kernel.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
MI300X = "AMD Instinct MI300X OAM"

CPU_NODE = {"cpu_cores_count": 64, "simd_count": 0, "simd_per_cu": 0, "gfx_target_version": 0,
            "vendor_id": 0, "device_id": 0, "location_id": 0, "domain": 0, "drm_render_minor": 0,
            "max_engine_clk_ccompute": 3700}


@dataclass
class Card:
    """One card. `files` are those of its folder on the bus, beside the usual ones; None takes a
    usual one away."""

    bus: int
    serial: int = 0
    memory: int = 192 * GIB
    simds: int = 1216
    per_cu: int = 4
    gfx: int = 90402
    device: int = 0x74A1
    revision: int = 0
    parts: int = 1
    domain: int = 0
    product: str | None = MI300X
    sensors: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, object] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:00.0"


def instinct(number: int, **changes: object) -> Card:
    """One of several MI300X: no edge temperature and no fan of its own."""
    card = Card(bus=0x0C + 0x10 * number, serial=0x2251_0000_0000_0000 + number, sensors={
        "power1_input": 140_000_000, "power1_label": "PPT", "power1_cap": 750_000_000,
        "temp2_input": 41_000, "temp2_label": "junction", "temp3_input": 36_000})
    for name, value in changes.items():
        setattr(card, name, value)
    return card


def radeon(bus: int = 0x03, serial: int = 0xD1F3_4B5A_0C2E_7788, **changes: object) -> Card:
    """A Radeon RX 7900 XTX: without a name of its own, with a cooler."""
    card = Card(bus=bus, serial=serial, memory=24 * GIB, simds=192, per_cu=2, gfx=110000,
                device=0x744C, revision=0xC8, product=None, sensors={
        "power1_average": 23_000_000, "power1_cap": 327_000_000,
        "temp1_input": 38_000, "temp2_input": 44_000, "temp3_input": 50_000})
    for name, value in changes.items():
        setattr(card, name, value)
    return card


def integrated(bus: int = 0x10) -> Card:
    """The GPU in a Ryzen desktop processor: without a number or memory of its own."""
    return Card(bus=bus, memory=GIB // 2, simds=4, per_cu=2, gfx=100306, device=0x164E,
                revision=0xC7, product=None,
                sensors={"in1_label": "vddnb", "in1_input": 900, "temp1_input": 35_000,
                         "temp1_label": "edge", "power1_average": 12_000_000},
                files={"mem_info_gtt_total": 31 * GIB})


class Tree:
    """A machine's files below `root`."""

    def __init__(self, root: Path, *cards: Card) -> None:
        self.root, self.cards = root, cards
        self.kfd, self.pci = root / "sys/class/kfd/kfd", root / "sys/bus/pci/devices"
        self.places: list[tuple[Card, int, int, int]] = []
        """Of each GPU node in its order: card, number of the node, gpu_id, number of the part."""
        self.make()

    def make(self) -> None:
        """Write everything as at the beginning."""
        for name in ("sys", "dev", "usr"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.places = []
        for folder in ("sys/module/amdgpu", "sys/class/drm", "dev/dri"):
            (self.root / folder).mkdir(parents=True)
        self.write("dev/kfd", "")
        self.pci.mkdir(parents=True)
        (self.kfd / "proc").mkdir(parents=True)
        self.node(0, 0, CPU_NODE)
        minor = 128
        for number, card in enumerate(self.cards):
            self.card(number, card)
            for part in range(card.parts):
                self.part(card, part, minor)
                minor += 1

    def write(self, name: str | Path, text: object) -> None:
        """Replace a file at once, as a reader may be at it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(f"{text}\n" if text != "" else "")
        new.replace(path)

    def node(self, number: int, gpu_id: int, properties: Mapping[str, int]) -> None:
        folder = self.kfd / "topology/nodes" / str(number)
        self.write(folder / "gpu_id", gpu_id)
        self.write(folder / "name", "ip discovery")
        self.write(folder / "properties",
                   "\n".join(f"{name} {value}" for name, value in properties.items()))

    def card(self, number: int, card: Card) -> None:
        real = self.root / f"sys/devices/pci{card.domain:04x}:00/{card.address}"
        files: dict[str, object] = {
            "vendor": "0x1002", "device": f"0x{card.device:04x}", "class": "0x038000",
            "revision": f"0x{card.revision:02x}", "gpu_busy_percent": 0,
            "mem_info_vram_total": card.memory, "mem_info_vram_used": 20 << 20,
            "mem_info_gtt_total": 16 * GIB, "power/runtime_status": "active",
            "hwmon/hwmon3/name": "amdgpu"}
        if card.serial:
            files["unique_id"] = f"{card.serial:016x}"
        if card.product:
            files["product_name"] = card.product
        files |= {f"hwmon/hwmon3/{name}": value for name, value in card.sensors.items()}
        files |= card.files
        for name, value in files.items():
            if value is not None:
                self.write(real / name, value)
        self.link(self.root / "sys/bus/pci/drivers/amdgpu", real / "driver")
        self.link(real, self.pci / card.address)
        self.link(real, real / f"drm/card{number}/device")
        self.link(real / f"drm/card{number}", self.root / f"sys/class/drm/card{number}")

    def part(self, card: Card, part: int, minor: int) -> None:
        number = len(self.places) + 1
        gpu_id = 20_000 + 37 * number
        properties = {
            "cpu_cores_count": 0, "simd_count": card.simds // card.parts, "mem_banks_count": 1,
            "simd_per_cu": card.per_cu, "gfx_target_version": card.gfx, "vendor_id": 4098,
            "device_id": card.device, "location_id": (card.bus << 8) + part,
            "domain": card.domain, "drm_render_minor": minor, "hive_id": 0}
        if card.serial:
            properties["unique_id"] = card.serial
        self.node(number, gpu_id, properties)
        self.write(f"dev/dri/renderD{minor}", "")
        self.places.append((card, number, gpu_id, part))

    @staticmethod
    def link(to: Path, at: Path) -> None:
        to.mkdir(parents=True, exist_ok=True)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(to, at.parent))

    def of(self, index: int, name: str, value: object) -> None:
        """Change a file in the folder on the bus of the card of GPU `index`; None takes it away."""
        path = (self.pci / self.places[index][0].address).resolve() / name
        if value is None:
            path.unlink()
        else:
            self.write(path, value)

    def pipe(self, index: int, name: str) -> None:
        """Make it a file that its reader waits for."""
        os.mkfifo(self.root / "pipe")
        (self.root / "pipe").replace(
            (self.pci / self.places[index][0].address).resolve() / name)

    def process(self, pid: int, used: Mapping[int, int], *, queues: tuple[int, ...] | None = None
                ) -> None:
        """A process that has opened the compute driver: bytes of each GPU that it holds, and GPUs
        that it has queues on (None: those it holds memory of)."""
        folder = self.kfd / f"proc/{pid}"
        for index, (_, _, gpu_id, _) in enumerate(self.places):
            self.write(folder / f"vram_{gpu_id}", used.get(index, 0))
        for queue, index in enumerate(queues if queues is not None else tuple(used)):
            self.write(folder / f"queues/{queue}/gpuid", self.places[index][2])

    def remove(self, index: int) -> None:
        """Take a card off the bus."""
        card, number, _, _ = self.places[index]
        shutil.rmtree(self.kfd / f"topology/nodes/{number}")
        (self.pci / card.address).unlink()

    def unload(self) -> None:
        """Unload the compute part of the driver."""
        shutil.rmtree(self.kfd)

    def was_read(self) -> list[str]:
        """The files that were read since this was last asked, by the test's process or another."""
        log = self.root / "read"
        found = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return found
