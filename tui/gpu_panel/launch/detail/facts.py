"""Everything known about one device, as labelled texts. Pure. Unknown is "–", never 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_panel.common import load

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_engine.devices.records import Device, Sample

GLYPHS = {"free": ("○", "good"), "busy": ("●", ""), "leased": ("◆", "accent"),
          "unhealthy": ("✗", "bad"), "unknown": ("?", "dim")}
"""State → glyph and style; the state's name is shown beside the glyph."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value."""

    label: str
    value: str
    style: str = ""


def state(freedom: Availability | None) -> tuple[str, str]:
    """Whether the device is free, with the reason; and the style for that."""
    if freedom is None:
        return f"? {UNKNOWN}", "dim"
    glyph, style = GLYPHS.get(freedom.state, ("?", "dim"))
    why = "" if freedom.reason == freedom.state else f": {clean(freedom.reason)}"
    return f"{glyph} {freedom.state}{why}", style


def identity(device: Device) -> str:
    """Everything that identifies the device: name, UUID, index and more."""
    parts = [clean(device.name)]
    if device.uuid:
        parts.append(clean(device.uuid))
    if device.index is not None and not device.is_cpu:
        parts.append(f"index {device.index}")
    if device.visible_index is not None:
        parts.append(f"position {device.visible_index} of those made visible")
    if device.capability is not None:
        parts.append("compute capability " + ".".join(map(str, device.capability)))
    if device.cores:
        parts.append(f"core{'s' if len(device.cores) > 1 else ''} "
                     + ", ".join(map(str, device.cores)))
    return " · ".join(parts)


def memory(device: Device, s: Sample) -> str:
    """Memory in use: "34.1 of 80.0 GiB, 0.60 reserved"."""
    if s.memory_is_hosts:
        return "the machine's"
    total = s.memory_total or device.memory_total
    text = f"{units.gib(s.memory_used)} of {units.gib(total)} GiB"
    if s.memory_reserved is not None:
        text += f", {units.gib(s.memory_reserved)} reserved"
    return text


def listed(device: Device, s: Sample, holder: Holder | None, leases_known: bool) -> list[Fact]:
    """All other facts about the device, in the order in which they are shown."""
    lease = clean(str(holder)) if holder else ("nobody" if leases_known else UNKNOWN)
    if device.is_cpu:
        return [Fact("lease", lease, "accent" if holder else "")]
    return [
        Fact("temperature", _with(s.temperature, "°C"), load.of_heat(s.temperature)),
        Fact("power", f"{_with(s.power)} of {_with(s.power_limit, 'W')}",
             load.of_power(s.power, s.power_limit)),
        Fact("fan", units.share(s.fan)),
        Fact("performance", UNKNOWN if s.performance_state is None else f"P{s.performance_state}"),
        Fact("SM clock", f"{_mhz(s.clock_sm)} of {_mhz(s.clock_sm_max)} MHz"),
        Fact("memory clock", f"{_mhz(s.clock_memory)} of {_mhz(s.clock_memory_max)} MHz"),
        Fact("bandwidth", f"memory busy {units.share(s.memory_utilization)}"),
        Fact("slowed by", UNKNOWN if s.throttle is None else
             clean(", ".join(s.throttle)) or "nothing", "warn" if s.throttle else ""),
        Fact("PCIe", f"gen {_whole(s.pcie_generation)} ×{_whole(s.pcie_width)}"),
        Fact("PCIe out/in", f"{_per_s(s.pcie_sent)} / {_per_s(s.pcie_received)}"),
        Fact("ECC errors", f"{_whole(s.ecc_corrected)} corrected, "
             f"{_whole(s.ecc_uncorrected)} not", "bad" if s.ecc_uncorrected else ""),
        Fact("persistence", UNKNOWN if s.persistence is None else
             ("on" if s.persistence else "off")),
        Fact("compute mode", clean(s.compute_mode) if s.compute_mode else UNKNOWN),
        Fact("MIG", "a slice of GPU " + str(device.index) if device.is_slice
             else "not sliced"),
        Fact("lease", lease, "accent" if holder else ""),
    ]


def trouble(s: Sample, shown_already: str = "") -> list[tuple[str, str]]:
    """(text, style) of the device's faults and notes, without what is in `shown_already`."""
    wrong = [clean(text) for text in (s.problem, *s.health) if text]
    found = [(f"✗ {text}", "bad") for text in wrong if text not in shown_already]
    if not wrong and s.taken:
        found = [("✓ no hardware fault is reported", "good")]
    return found + [(f"! {clean(text)}", "warn") for text in s.notes]


def _with(value: float | None, unit: str = "") -> str:
    gap = f" {unit}" if unit else ""
    return (UNKNOWN if value is None else f"{value:.0f}") + gap


def _whole(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _mhz(hertz: int | None) -> str:
    return UNKNOWN if hertz is None else f"{hertz / 1e6:,.0f}"


def _per_s(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{units.size(rate)}/s"
