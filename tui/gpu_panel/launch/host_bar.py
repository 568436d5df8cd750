"""The first line of the launch screen: the machine and its load."""

from __future__ import annotations

import socket
import time
from collections import Counter

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Device, HostSample, Inventory, Snapshot
from gpu_engine.runs import disk_room
from gpu_panel import readonly
from gpu_panel.launch.device_source import DeviceSource


class HostBar(Widget):
    """Host, GPUs, their power and driver on the left; processor, memory, disk and time on
    the right. If there is too little room, the least important parts are dropped."""

    def __init__(self, source: DeviceSource) -> None:
        super().__init__(id="host")
        self._source = source
        self._host = clean(socket.gethostname()).partition(".")[0]

    def render(self) -> Content:
        shot = self._source.snapshot
        sample = shot.host if shot else HostSample()
        left = ["gpu-panel read-only" if readonly.on else "gpu-panel", self._host,
                *_machine(self._source.inventory, shot)]
        right = _figures(sample)
        full = "" if sample.disk_free is None or sample.disk_free >= disk_room.SCARCE else \
            "bold $text-error" if sample.disk_free < disk_room.LEAST else "bold $text-warning"

        def gap() -> int:
            return self.size.width - 2 - cell_len(" · ".join(left) + "  ".join(right.values()))

        # Driver and power go first, then the disk unless it is nearly full.
        for name in ("left", "left", "left", "memory" if full else "disk", "memory", "CPU"):
            if gap() >= 2:
                break
            if name != "left":
                right.pop(name, None)
            elif len(left) > 3:
                left.pop()
        return Content.assemble(
            " ", (left[0], "bold $text-primary"), " · " + " · ".join(left[1:]),
            " " * max(1, gap()), Content("  ").join(
                Content.styled(text, full if name == "disk" and full else "$text-muted")
                for name, text in right.items()))


def _machine(inventory: Inventory | None, shot: Snapshot | None) -> list[str]:
    if inventory is None:
        return ["…"]
    counts = Counter(map(_kind, inventory.devices))
    out = [" + ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in sorted(counts.items()))]
    drawn = [s.power for s in (shot.samples if shot else ())
             if s.power is not None and not s.problem]
    if drawn:
        watts = sum(drawn)
        out.append(f"{watts:.0f} W" if watts < 999.5 else f"{watts / 1000:.1f} kW")
    out += [f"driver {clean(inventory.driver)}"] if inventory.driver else []
    return out + ([f"CUDA {clean(inventory.cuda)}"] if inventory.cuda else [])


def _kind(device: Device) -> str:
    """What a device is called: "GPU", "MIG slice" or "CPU slot"."""
    name = device.kind.upper()
    return f"{name} slice" if device.is_slice else f"{name} slot" if device.is_cpu else name


def _figures(sample: HostSample) -> dict[str, str]:
    """What is known of the machine's load, and the time."""
    out = {"CPU": f"CPU {units.share(sample.cpu)}" if sample.cpu is not None
           else f"CPU {UNKNOWN} %"}
    if sample.memory_total:
        used = UNKNOWN if sample.memory_used is None else f"{sample.memory_used / 2**30:.0f}"
        out["memory"] = f"RAM {used}/{sample.memory_total / 2**30:.0f}G"
    if (free := sample.disk_free) is not None:
        size = f"{free / 2**30:,.0f}G" if free >= 9.95 * 2**30 else \
            f"{free / 2**30:.1f}G" if free >= 0.95 * 2**30 else f"{free / 2**20:.0f}M"
        out["disk"] = f"disk {size} free"
    return out | {"time": time.strftime("%H:%M")}
