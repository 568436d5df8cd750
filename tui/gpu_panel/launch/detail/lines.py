"""One device and its processes as lines of text. Pure, so that tests can read the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.devices.records import Device, Sample
from gpu_panel.common.rows import Line, Row, fit, wrap
from gpu_panel.launch.detail import facts
from gpu_panel.launch.devices import graphs
from gpu_panel.launch.devices.history import History, span
from gpu_panel.launch.gpu_processes import lines as processes

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_panel.launch.detail.facts import Fact
    from gpu_panel.launch.gpu_processes.lines import GpuProcess

_LABEL = 13


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    """Everything that the detail pane shows."""

    device: Device | None = None
    sample: Sample | None = None
    freedom: Availability | None = None
    holder: Holder | None = None
    leases_known: bool = False
    history: History | None = None
    processes: Sequence[GpuProcess] = ()
    """In the order in which they are shown."""
    now: float = 0.0
    """Unix seconds."""
    host: str | None = None
    """The machine that it belongs to; None for this one."""
    hue: int = 0
    """The number of the hue of the run of ours on it; 0 if there is none."""


def build(details: DeviceDetails, width: int) -> list[Row]:
    """Text about the device, then a row for each process, whose key is its pid."""
    device = details.device
    if device is None:
        return [Row("", ((("No device is selected", "dim"),),))]
    sample = details.sample or Sample(device)
    text, style = facts.state(details.freedom)
    busy = details.freedom is not None and details.freedom.state == "busy"  # details follow below
    lines: list[Line] = [((part, style),)
                         for part in ([fit(text, width)] if busy else wrap(text, width))]
    lines += [((part, "dim"),) for part in wrap(facts.identity(device), width)]
    lines += _curves(details, sample, width)
    lines += _grid(facts.listed(device, sample, details.holder, details.leases_known), width)
    for trouble, tone in facts.trouble(sample, shown_already=text):
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
            ("memory", history.memory(name, over), facts.memory(details.device, sample)))]
    axis = (" " * _LABEL + graphs.axis(over) + " " * rest, "dim")
    return [(axis, axis), (*drawn[0], *drawn[1])] if side == 2 else [(axis,), *drawn]


def _grid(found: Sequence[Fact], width: int) -> list[Line]:
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
