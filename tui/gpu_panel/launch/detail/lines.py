"""Everything known about one device, and its processes, as lines of text. Pure, so that tests can
read the result. Unknown is "–", never 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Device, Sample
from gpu_panel.common import load
from gpu_panel.common.rows import Line, Row, fit, wrap
from gpu_panel.launch.devices import graphs
from gpu_panel.launch.devices.history import History, span
from gpu_panel.launch.gpu_processes import lines as processes

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_panel.launch.gpu_processes.lines import GpuProcess

_LABEL = 13


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    device: Device | None = None
    sample: Sample | None = None
    freedom: Availability | None = None
    holder: Holder | None = None
    leases_known: bool = False
    history: History | None = None
    processes: Sequence[GpuProcess] = ()
    now: float = 0.0
    """Unix seconds."""
    host: str | None = None
    hue: int = 0


def build(details: DeviceDetails, width: int) -> list[Row]:
    """Text about the device, then a row for each process, whose key is its pid."""
    device = details.device
    if device is None:
        return [Row("", ((("No device is selected", "dim"),),))]
    sample = details.sample or Sample(device)
    text, style = _state(details.freedom)
    busy = details.freedom is not None and details.freedom.state == "busy"  # details follow below
    lines: list[Line] = [((part, style),)
                         for part in ([fit(text, width)] if busy else wrap(text, width))]
    lines += [((part, "dim"),) for part in wrap(_identity(device), width)]
    lines += _curves(details, sample, width)
    lines += _grid(_listed(device, sample, details.holder, details.leases_known), width)
    for trouble, tone in _trouble(sample, shown_already=text):
        lines += [((part, tone),) for part in wrap(trouble, width)]
    rows = [Row("", tuple(lines))]
    return rows if device.is_cpu else rows + _processes(details, sample, width)


def _curves(details: DeviceDetails, sample: Sample, width: int) -> list[Line]:
    """Utilisation and memory of the last five minutes, side by side if they fit."""
    assert details.device is not None
    side = 2 if width >= 120 else 1
    room = width // side
    over = span(max(8, min(60, room - _LABEL - 34)))
    history, name = details.history or History(), details.device.id
    rest = max(0, room - _LABEL - over.cells)
    drawn: list[Line] = [
        ((fit(label, _LABEL), "dim"), *graphs.bars(values, details.hue),
         (fit(f"  {said}", rest), ""))
        for label, values, said in (
            ("utilisation", history.utilization(name, over), units.share(sample.utilization)),
            ("memory", history.memory(name, over), _memory(details.device, sample)))]
    axis = (" " * _LABEL + graphs.axis(over) + " " * rest, "dim")
    return [(axis, axis), (*drawn[0], *drawn[1])] if side == 2 else [(axis,), *drawn]


def _grid(found: Sequence[_Fact], width: int) -> list[Line]:
    """The facts in columns of equal width; one that is too long gets a line of its own."""
    count = 4 if width >= 140 else 3 if width >= 104 else 2 if width >= 60 else 1
    room = width // count
    out: list[Line] = []
    row: list[tuple[str, str]] = []
    for fact in found:
        wide = len(fact.value) > room - _LABEL - 1
        if row and (wide or len(row) == 2 * count):
            out.append(tuple(row))
            row = []
        space = width if wide else room
        row += [(fit(fact.label, _LABEL), "dim"),
                (fit(fact.value, max(0, space - _LABEL)), fact.style)]
        if wide:
            out.append(tuple(row))
            row = []
    return [*out, tuple(row)] if row else out


def _processes(details: DeviceDetails, sample: Sample, width: int) -> list[Row]:
    if not details.processes:
        text = "The driver does not list its processes" if sample.processes is None \
            else "No processes"
        return [Row("", ((("", ""),), ((text, "dim"),)))]
    head, rows = processes.build(details.processes, (), width, details.now, of_one=True)
    titles = "".join(text for text, _ in head or ())
    return [Row("", ((("", ""),), ((titles, "dim"),))), *rows]


_GLYPHS = {"free": ("○", "good"), "busy": ("●", ""), "leased": ("◆", "accent"),
           "unhealthy": ("✗", "bad"), "unknown": ("?", "dim")}
"""State → glyph and style; the state's name is shown beside the glyph."""


@dataclass(frozen=True, slots=True)
class _Fact:
    label: str
    value: str
    style: str = ""


def _state(freedom: Availability | None) -> tuple[str, str]:
    """Whether the device is free, with the reason; and the style for that."""
    if freedom is None:
        return f"? {UNKNOWN}", "dim"
    glyph, style = _GLYPHS.get(freedom.state, ("?", "dim"))
    why = "" if freedom.reason == freedom.state else f": {clean(freedom.reason)}"
    return f"{glyph} {freedom.state}{why}", style


def _identity(device: Device) -> str:
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


def _memory(device: Device, s: Sample) -> str:
    """Memory in use: "34.1 of 80.0 GiB, 0.60 reserved"."""
    if s.memory_is_hosts:
        return "the machine's"
    total = s.memory_total or device.memory_total
    text = f"{units.gib(s.memory_used)} of {units.gib(total)} GiB"
    if s.memory_reserved is not None:
        text += f", {units.gib(s.memory_reserved)} reserved"
    return text


def _listed(device: Device, s: Sample, holder: Holder | None, leases_known: bool) -> list[_Fact]:
    lease = clean(str(holder)) if holder else ("nobody" if leases_known else UNKNOWN)
    if device.is_cpu:
        return [_Fact("lease", lease, "accent" if holder else "")]
    return [
        _Fact("temperature", _with(s.temperature, "°C"), load.of_heat(s.temperature)),
        _Fact("power", f"{_with(s.power)} of {_with(s.power_limit, 'W')}",
              load.of_power(s.power, s.power_limit)),
        _Fact("fan", units.share(s.fan)),
        _Fact("performance", UNKNOWN if s.performance_state is None else f"P{s.performance_state}"),
        _Fact("SM clock", f"{_mhz(s.clock_sm)} of {_mhz(s.clock_sm_max)} MHz"),
        _Fact("memory clock", f"{_mhz(s.clock_memory)} of {_mhz(s.clock_memory_max)} MHz"),
        _Fact("bandwidth", f"memory busy {units.share(s.memory_utilization)}"),
        _Fact("slowed by", UNKNOWN if s.throttle is None else
              clean(", ".join(s.throttle)) or "nothing", "warn" if s.throttle else ""),
        _Fact("PCIe", f"gen {_whole(s.pcie_generation)} ×{_whole(s.pcie_width)}"),
        _Fact("PCIe out/in", f"{_per_s(s.pcie_sent)} / {_per_s(s.pcie_received)}"),
        _Fact("ECC errors", f"{_whole(s.ecc_corrected)} corrected, "
              f"{_whole(s.ecc_uncorrected)} not", "bad" if s.ecc_uncorrected else ""),
        _Fact("persistence", UNKNOWN if s.persistence is None else
              ("on" if s.persistence else "off")),
        _Fact("compute mode", clean(s.compute_mode) if s.compute_mode else UNKNOWN),
        _Fact("MIG", "a slice of GPU " + str(device.index) if device.is_slice
              else "not sliced"),
        _Fact("lease", lease, "accent" if holder else ""),
    ]


def _trouble(s: Sample, shown_already: str = "") -> list[tuple[str, str]]:
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
