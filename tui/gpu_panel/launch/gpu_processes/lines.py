"""Processes on GPUs as lines of text: of all GPUs, or of one. Pure, so that tests can read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Device, DeviceProcess
from gpu_panel.common.rows import Line, Row, cells, fit
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.lines import short
from gpu_panel.launch.devices.source import Machine
from gpu_panel.launch.runs.line import RunLine

_LEAST = 16
"""Cells that the command keeps; the columns that may go leave it so many."""
_WIDE = 100
"""Cells from which on there are two between columns."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process and the devices that it is on."""

    process: DeviceProcess
    """Its memory and utilisation are the sums over the devices."""
    devices: tuple[Device, ...]
    host: str | None = None
    ours: str = ""
    """The run and the rank of ours that it is: "run 3f2a rank 0"."""

    @property
    def key(self) -> str:
        return row_keys.of(self.host, str(self.process.pid))


ORDERS: dict[str, Callable[[GpuProcess], tuple[float | str, ...]]] = {
    "memory": lambda p: (-(p.process.memory or 0),),
    "GPU": lambda p: (p.devices[0].index if p.devices[0].index is not None else -1,
                      -(p.process.memory or 0)),
    "user": lambda p: (p.process.user or "\uffff", -(p.process.memory or 0)),
    "SM": lambda p: (-(p.process.utilization or 0.0),),
    "CPU": lambda p: (-(p.process.cpu or 0.0),),
    "age": lambda p: (p.process.started if p.process.started is not None else float("inf"),),
}
"""How the table can be sorted: by the most, by name, or the oldest first."""


def ranks_by_pid(runs: Iterable[RunLine]) -> dict[int, tuple[RunLine, int]]:
    """The processes that are ranks of live runs: pid → run and rank."""
    return {pid: (run, rank) for run in runs for pid, rank in run.pids}


def named_ranks(runs: Iterable[RunLine]) -> dict[int, str]:
    """Those as "run 3f2a rank 0"."""
    return {pid: f"run {run.id} rank {rank}" for pid, (run, rank) in ranks_by_pid(runs).items()}


def gather(machines: Iterable[Machine], ours: Mapping[int, str], order: str) -> list[GpuProcess]:
    """The processes on all devices, sorted; this machine's before those of hosts. `ours`: pid of
    this machine → run and rank."""
    found: list[GpuProcess] = []
    for machine in machines:
        here: dict[int, GpuProcess] = {}
        for sample in machine.snapshot.samples if machine.snapshot is not None else ():
            for process in sample.processes or ():
                before = here.get(process.pid)
                here[process.pid] = GpuProcess(
                    process, (sample.device,), machine.host,
                    ours.get(process.pid, "") if machine.host is None else "") \
                    if before is None else _joined(before, sample.device, process)
        found += sorted(here.values(), key=lambda p: (*ORDERS[order](p), p.process.pid))
    return found


def _joined(before: GpuProcess, device: Device, process: DeviceProcess) -> GpuProcess:
    old = before.process
    more = replace(old, memory=_sum(old.memory, process.memory),
                   utilization=_sum(old.utilization, process.utilization))
    return replace(before, process=more, devices=(*before.devices, device))


N = TypeVar("N", int, float)


def _sum(one: N | None, other: N | None) -> N | None:
    return one if other is None else other if one is None else one + other


def unlisted(machines: Iterable[Machine]) -> list[str]:
    """The devices whose processes the driver does not list, in words."""
    found: list[str] = []
    for machine in machines:
        where = f" on {clean(machine.host)}" if machine.host is not None else ""
        names = [s.device.label for s in (machine.snapshot.samples if machine.snapshot else ())
                 if s.processes is None and not s.device.is_cpu]
        if names:
            found.append(f"{', '.join(names)}{where}: the driver does not list the processes")
    return found


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    text: Callable[[GpuProcess], str]
    left: bool = False


def build(found: Sequence[GpuProcess], notes: Sequence[str], width: int, now: float, *,
          of_one: bool = False) -> tuple[Line | None, list[Row]]:
    """The header and a row for each process, `width` cells wide. Only the command is ever cut.
    `now`: Unix seconds. `of_one`: they are all on one device, which is not told."""
    rows = [Row("", (((note, "warn"),),)) for note in notes]
    if not found:
        return None, [Row("", ((("No processes on any GPU", "dim"),),)), *rows]
    gap = "  " if width >= _WIDE else " "
    columns = _columns(found, width - _LEAST, len(gap), now, of_one)

    def line(texts: Iterable[str]) -> str:
        return "".join((fit(text, c.width) if c.left else f"{text:>{c.width}}") + gap
                       for c, text in zip(columns, texts, strict=True))

    head = line(c.title for c in columns) + "command"
    return ((head, ""),), [*(_row(p, line(c.text(p) for c in columns), width) for p in found),
                           *rows]


def _columns(found: Sequence[GpuProcess], width: int, gap: int, now: float, of_one: bool
             ) -> list[_Column]:
    def wide(title: str, text: Callable[[GpuProcess], str], most: int = 20) -> _Column:
        room = max(cells(title), *(cells(text(p)) for p in found))
        return _Column(title, min(room, most), text, left=True)

    columns = [_Column("pid", 7, lambda p: str(p.process.pid)),
               wide("user", lambda p: clean(p.process.user or UNKNOWN), 12)]
    if not of_one:
        columns.append(wide("GPU", _places))
        if any(p.host is not None for p in found):
            columns.insert(0, wide("host", lambda p: clean(p.host or "here")))
    if any(p.ours for p in found):
        columns.append(wide("run", lambda p: clean(p.ours).removeprefix("run ")))
    columns.append(_Column("GPU mem", 8, lambda p: units.size(p.process.memory)))
    age = _Column("age", 7, lambda p: _age(
        now - p.process.started if p.process.started is not None else None))
    room = width - sum(c.width + gap for c in (*columns, age))
    for more in (_Column("SM", 5, lambda p: units.share(p.process.utilization)),
                 _Column("CPU", 6, lambda p: units.share(p.process.cpu)),
                 _Column("host mem", 8, lambda p: units.size(p.process.host_memory))):
        room -= more.width + gap
        columns += [more] * (room >= 0)
    return [*columns, age]


def _age(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return "< 1 min"


def _places(p: GpuProcess) -> str:
    """The numbers of its devices: "0 1 2"."""
    names = list(dict.fromkeys(short(d) for d in p.devices))
    return " ".join(names) if len(names) <= 8 else f"{' '.join(names[:6])} +{len(names) - 6}"


def _row(p: GpuProcess, figures: str, width: int) -> Row:
    command = clean(p.process.command or UNKNOWN) if p.process.visible else \
        "not visible from here (in a container?)"
    kind = "" if p.process.kind == "compute" else f"{p.process.kind} · "
    return Row(p.key, (((figures, "accent" if p.ours else ""),
                        (fit(kind + command, max(0, width - cells(figures))), "")),))
