"""The first line of the launch screen: the machine and its load."""

from __future__ import annotations

import socket
import time
from collections import Counter

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Device, HostSample, Inventory, Snapshot
from gpu_engine.runs import disk_room
from gpu_panel import readonly
from gpu_panel.common import units
from gpu_panel.common.units import UNKNOWN
from gpu_panel.launch.device_source import DeviceSource


class HostBar(Widget):
    """Host, GPUs, their power and driver on the left; processor, memory, disk, network and time on
    the right. If there is too little room, the least important parts are dropped."""

    def __init__(self, source: DeviceSource) -> None:
        super().__init__(id="host")
        self._source = source
        self._host = clean(socket.gethostname()).partition(".")[0]

    def render(self) -> Content:
        shot = self._source.snapshot
        sample, now = shot.host if shot else HostSample(), time.strftime("%H:%M")
        left = ["gpu-panel read-only" if readonly.on else "gpu-panel", self._host,
                *_machine(self._source.inventory, shot)]
        right = [*_figures(sample), *_network(sample), now]
        full = _disk_style(sample)
        wide = self.size.width - 2
        if len(right) > 3 and _width(left, " · ") + _width(right, "  ") + 2 > wide:
            right = [*_figures(sample), now]  # the network is dropped first
        while len(right) > 1 and _width(left, " · ") + _width(right, "  ") + 2 > wide:
            if len(left) > 3:
                left.pop()
            else:
                # Drop the disk first and the time last, but keep a disk that is nearly full.
                scarce = full and right[-2].startswith("disk ") and len(right) > 2
                right.pop(-3 if scarce else -2)
        gap = max(1, wide - _width(left, " · ") - _width(right, "  "))
        return Content.assemble(" ", (left[0], "bold $text-primary"),
                                (" · " + " · ".join(left[1:]), ""), " " * gap,
                                Content("  ").join(
                                    Content.styled(part, full if part.startswith("disk ")
                                                   and full else "$text-muted")
                                    for part in right))


def _width(parts: list[str], gap: str) -> int:
    return cell_len(gap.join(parts))


def _machine(inventory: Inventory | None, shot: Snapshot | None) -> list[str]:
    if inventory is None:
        return ["…"]
    counts = Counter(_kind(d) for d in inventory.devices)
    out = [" + ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in sorted(counts.items()))]
    drawn = [s.power for s in (shot.samples if shot else ())
             if s.power is not None and not s.problem]
    if drawn:
        out.append(_power(sum(drawn)))
    if inventory.driver:
        out.append(f"driver {clean(inventory.driver)}")
    if inventory.cuda:
        out.append(f"CUDA {clean(inventory.cuda)}")
    return out


def _power(watts: float) -> str:
    """"954 W" or "2.3 kW"."""
    return f"{watts:.0f} W" if watts < 999.5 else f"{watts / 1000:.1f} kW"


def _kind(device: Device) -> str:
    """What a device is called: "GPU", "MIG slice" or "CPU slot"."""
    name = device.kind.upper()
    return f"{name} slice" if device.is_slice else f"{name} slot" if device.is_cpu else name


def _figures(sample: HostSample) -> list[str]:
    cpu = UNKNOWN if sample.cpu is None else f"{sample.cpu * 100:.0f}"
    out = [f"CPU {cpu} %"]
    if sample.memory_total:
        used = UNKNOWN if sample.memory_used is None else f"{sample.memory_used / 2**30:.0f}"
        out.append(f"RAM {used}/{sample.memory_total / 2**30:.0f}G")
    if sample.disk_free is not None:
        out.append(f"disk {_left(sample.disk_free)} free")
    return out


def _left(free: float) -> str:
    """Free bytes as "812G", "1.4G" or "34M"."""
    if free >= 9.95 * 2**30:
        return f"{free / 2**30:,.0f}G"
    return f"{free / 2**30:.1f}G" if free >= 0.95 * 2**30 else f"{free / 2**20:.0f}M"


def _disk_style(sample: HostSample) -> str:
    """The style for a disk that is nearly or completely full; empty for any other."""
    if sample.disk_free is None or sample.disk_free >= disk_room.SCARCE:
        return ""
    return "bold $text-error" if sample.disk_free < disk_room.LEAST else "bold $text-warning"


def _network(sample: HostSample) -> list[str]:
    """The network's rates: "net ↑ 1.2 MiB/s ↓ 34 KiB/s"."""
    if sample.net_sent is None and sample.net_received is None:
        return []
    sent, received = (UNKNOWN if rate is None else f"{units.size(rate)}/s"
                      for rate in (sample.net_sent, sample.net_received))
    return [f"net ↑ {sent} ↓ {received}"]
