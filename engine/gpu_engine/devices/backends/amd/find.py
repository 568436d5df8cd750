"""Find AMD GPUs and their partitions in the topology of the kernel's compute driver (KFD).

ROCm numbers its devices in the order of the topology's nodes, leaving out those without SIMDs
(processors) and those whose render node does not exist or is not allowed here, as in a container
(libhsakmt's topology.c). Card numbers play no part. This runs in the probe, as any file of a driver
may hang its reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpu_engine.devices.backends.sysfs import Look, Tree, names_in
from gpu_engine.devices.records import Device

NAMES = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""libdrm's list of names, by device and revision."""
_MOST_MEMORY = 1 << 48


@dataclass(frozen=True, slots=True)
class Found:
    """A GPU, or one of the partitions that a card is divided into, and where its files are."""

    device: Device
    node: str
    """The name of its folder in the topology."""
    gpu_id: int
    """The KFD's number of it, by which it is named in the files of processes."""
    card: str
    """The address of its card on the bus, "0000:03:00.0"."""
    partitions: int
    """Into how many devices its card is divided; 1: it is the whole card."""
    units: int | None
    """Its compute units."""
    render: str
    """Its render node, below dev/dri."""


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    gpu_id: int
    properties: dict[str, int]
    card: str
    part: int
    """The number of the partition on its card."""

    @property
    def serial(self) -> int:
        """The number that the card was made with; 0: it has none, or does not tell."""
        return self.properties.get("unique_id", 0)


def find(tree: Tree) -> tuple[list[Found], int]:
    """All GPUs that ROCm can see, in its order, and how many it can't because they are not
    accessible here."""
    nodes, hidden = [], 0
    for name in sorted(filter(str.isdecimal, names_in(tree.kfd / "topology/nodes")), key=int):
        look = Look(tree, tree.node(name))
        gpu_id = look.number("gpu_id", 1 << 32)
        if gpu_id == 0:
            continue  # a processor
        properties = look.properties()
        if not properties.get("simd_count"):
            # What a container may not use can't even be read; a node of no SIMDs is a processor.
            hidden += not properties
            continue
        minor = properties.get("drm_render_minor")
        if not minor or not (tree.root / "dev/dri" / f"renderD{minor}").exists():
            hidden += 1
            continue
        card, part = _address(tree, properties)
        nodes.append(_Node(name, gpu_id or 0, properties, card, part))
    cards, serials = Counter(n.card for n in nodes), Counter(n.serial for n in nodes)
    models = _models(tree)
    return [_gpu(tree, index, node, cards, serials, models)
            for index, node in enumerate(nodes)], hidden


def unread(tree: Tree) -> list[str]:
    """Addresses of AMD's display and compute devices on the bus that no driver has taken."""
    found = []
    for address in names_in(tree.pci):
        look = Look(tree, tree.pci / address)
        if look.text("vendor") == "0x1002" and (look.text("class") or "").startswith(
                ("0x0300", "0x0302", "0x0380", "0x1200")) \
                and not (tree.pci / address / "driver").exists():
            found.append(address)
    return found


def driver_version(tree: Tree) -> str | None:
    """The version of the driver. The kernel's own has none; AMD's package has."""
    return Look(tree, tree.root / "sys/module/amdgpu").text("version")


def uses_the_hosts_memory(look: Look) -> bool:
    """Whether the GPU is a part of the processor that works in the machine's memory. `look`: at its
    folder on the bus.

    Only such parts report the voltage "vddnb" (amdgpu's thermal documents). One that the firmware
    has given most of the memory (`vram`) is a GPU with memory of its own to us.
    """
    sensors = sensors_of(look)
    if sensors is None or look.text(f"{sensors}/in1_label") != "vddnb":
        return False
    own = look.number("mem_info_vram_total", _MOST_MEMORY) or 0
    return own < (look.number("mem_info_gtt_total", _MOST_MEMORY) or 0)


def sensors_of(look: Look) -> str | None:
    """The folder of a card's sensors, "hwmon/hwmon3", below its folder on the bus."""
    return next((f"hwmon/{name}" for name in names_in(look.folder / "hwmon")
                 if look.text(f"hwmon/{name}/name") == "amdgpu"), None)


def asleep(look: Look) -> bool:
    """Whether a card sleeps. To read its sensors then wakes it (before Linux 6.15) or fails."""
    return look.text("power/runtime_status") in ("suspended", "suspending")


def _address(tree: Tree, properties: dict[str, int]) -> tuple[str, int]:
    """The card's address on the bus, and the number of the partition on it.

    location_id is bus, device and function in 8, 5 and 3 bits, and the partition in the highest
    four; older drivers put the partition where the function is (rocm_smi_main.cc).
    """
    place = properties.get("location_id", 0)
    bus = f"{properties.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}"
    part, function = place >> 28 & 15, place & 7
    if function and not part and not (tree.pci / f"{bus}.{function}").exists():
        return f"{bus}.0", function
    return f"{bus}.{function}", part


def _gpu(tree: Tree, index: int, node: _Node, cards: Counter[str], serials: Counter[int],
         models: dict[tuple[int, int], str]) -> Found:
    p = node.properties
    look = Look(tree, tree.pci / node.card)
    divided = cards[node.card] > 1
    real = bool(node.serial) and serials[node.serial] == 1
    # Without a number of its own, a card is known by its place, which presets can keep as well.
    uuid = f"GPU-{node.serial:016x}" if node.serial else f"PCI-{node.card}"
    if divided and not real:
        uuid += f"/{node.part}"
    name = _name(look, p, models)
    if divided:
        mode = look.text("current_compute_partition")
        name += f" {mode or 'partition'} {node.part}"
    memory = None
    if divided:
        memory = _bank(tree, node.name)
    elif not uses_the_hosts_memory(look):
        memory = look.number("mem_info_vram_total", _MOST_MEMORY, 1) or _bank(tree, node.name)
    per_unit = p.get("simd_per_cu")
    return Found(
        Device(str(index), "gpu", name, index=index, uuid=uuid, memory_total=memory),
        node=node.name, gpu_id=node.gpu_id, card=node.card, partitions=cards[node.card],
        units=p["simd_count"] // per_unit or None if per_unit else None,
        render=f"renderD{p['drm_render_minor']}")


def _bank(tree: Tree, node: str) -> int | None:
    """The memory of a node by its banks (heap_type 1 and 2: the GPU's own)."""
    total = 0
    for name in names_in(tree.node(node) / "mem_banks"):
        bank = Look(tree, tree.node(node) / "mem_banks" / name).properties()
        if bank.get("heap_type") in (1, 2):
            total += bank.get("size_in_bytes", 0)
    return total if 0 < total <= _MOST_MEMORY else None


def _name(look: Look, properties: dict[str, int], models: dict[tuple[int, int], str]) -> str:
    """The model: from the card itself (server cards), from libdrm's list, or by its architecture.
    """
    own = look.text("product_name")
    if own is not None and own.isprintable():
        return own
    revision = _hex(look.text("revision"))
    listed = models.get((properties.get("device_id", 0), revision or 0))
    if listed is not None:
        return listed if "AMD" in listed else f"AMD {listed}"
    version = properties.get("gfx_target_version")
    if not version:
        return "AMD GPU"
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"AMD GPU gfx{major}{minor:x}{step:x}"


def _hex(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _models(tree: Tree) -> dict[tuple[int, int], str]:
    """libdrm's names by (device, revision); lines of "744C,	C8,	AMD Radeon RX 7900 XTX"."""
    found: dict[tuple[int, int], str] = {}
    for place in NAMES:
        try:
            text = (tree.root / place).read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            parts = [p.strip() for p in line.split(",", 2)]
            if len(parts) == 3 and not line.startswith("#"):
                device, revision = _hex(parts[0]), _hex(parts[1])
                if device is not None and revision is not None and parts[2]:
                    found.setdefault((device, revision), parts[2])
    return found
