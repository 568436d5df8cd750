"""One device and its processes as lines of text. Pure, so that tests can read the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Device, DeviceProcess, Sample
from gpu_panel.common.rows import Line, Row, fit, wrap
from gpu_panel.launch.detail import facts
from gpu_panel.launch.devices import graphs
from gpu_panel.launch.devices.history import History, span

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_panel.launch.detail.facts import Fact

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
    ours: Mapping[int, str] | None = None
    """pid → the run and rank of ours that it is: "run 3f2a rank 0"."""
    order: str = "memory"
    """How the processes are sorted: one of ORDERS."""
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


# --- processes -------------------------------------------------------------------------------

ORDERS: dict[str, Callable[[DeviceProcess], float]] = {
    "memory": lambda p: -(p.memory or 0),
    "SM": lambda p: -(p.utilization or 0.0),
    "CPU": lambda p: -(p.cpu or 0.0),
    "age": lambda p: p.started if p.started is not None else float("inf"),
}


def _processes(details: DeviceDetails, sample: Sample, width: int) -> list[Row]:
    found = sample.processes
    if not found:
        text = "The driver does not list its processes" if found is None else \
            "No processes"
        return [Row("", ((("", ""),), ((text, "dim"),)))]
    ordered = sorted(found, key=lambda p: (ORDERS[details.order](p), p.pid))
    owner = min(12, max(5, *(len(clean(p.user or UNKNOWN)) for p in ordered)))
    head = _cells(("pid", fit("owner", owner), "GPU mem", "SM", "CPU", "host mem", "age"), width)
    rows = [Row("", ((("", ""),), ((head + "command", "dim"),)))]
    return rows + [_process(details, p, owner, width) for p in ordered]


def _cells(texts: Sequence[str], width: int) -> str:
    """All columns but the last, closer together if there is little room."""
    gap = "  " if width >= 100 else " "
    return "".join(f"{text:>{size}}{gap}"
                   for text, size in zip(texts, (7, 0, 8, 5, 6, 8, 7), strict=True))


def _process(details: DeviceDetails, p: DeviceProcess, owner: int, width: int) -> Row:
    ran = details.now - p.started if p.started is not None else None
    figures = _cells((str(p.pid), fit(clean(p.user or UNKNOWN), owner), units.size(p.memory),
                      units.share(p.utilization), units.share(p.cpu), units.size(p.host_memory),
                      age(ran)), width)
    ours = (details.ours or {}).get(p.pid)
    command = clean(p.command or UNKNOWN) if p.visible else \
        "not visible from here (in a container?)"
    kind = "" if p.kind == "compute" else f"{p.kind} · "
    left = max(0, width - len(figures))
    if ours:
        mine = f"● {clean(ours)} "
        return Row(str(p.pid), (((figures, ""), (fit(mine, min(left, len(mine))), "accent"),
                                 (fit(kind + command, max(0, left - len(mine))), "")),))
    return Row(str(p.pid), (((figures, ""), (fit(kind + command, left), "")),))


def age(seconds: float | None) -> str:
    """A short age that rarely changes, so that the line needn't be drawn each second."""
    if seconds is None:
        return UNKNOWN
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return "< 1 min"
