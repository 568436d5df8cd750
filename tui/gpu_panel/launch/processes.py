"""Lists of processes on GPUs, to sort them and to end one; and the screen with those on all GPUs,
of this machine and of hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Device, DeviceProcess
from gpu_panel import keys
from gpu_panel.common.errors import guarded
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.panes import Pane, PaneScreen
from gpu_panel.common.rows import Line, Row, Rows, cells, fit
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import DeviceSource, Machine
from gpu_panel.launch.device_table import short
from gpu_panel.launch.run_line import RunLine, ranks_by_pid

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

Runs = Callable[[], Sequence[RunLine]]
Stop = Callable[[RunLine, str], object]
N = TypeVar("N", int, float)

EVERY = 2.0
"""Seconds between paintings, as processes are sampled every two seconds."""
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
                rank = ours.get(process.pid, "") if machine.host is None else ""
                devices: tuple[Device, ...] = (sample.device,)
                if (before := here.get(process.pid)) is not None:  # it is on several devices
                    devices = (*before.devices, sample.device)
                    process = replace(
                        before.process, memory=_sum(before.process.memory, process.memory),
                        utilization=_sum(before.process.utilization, process.utilization))
                here[process.pid] = GpuProcess(process, devices, machine.host, rank)
        found += sorted(here.values(), key=lambda p: (*ORDERS[order](p), p.process.pid))
    return found


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


def build(found: Sequence[GpuProcess], notes: Sequence[str], width: int, now: float, *,
          of_one: bool = False) -> tuple[Line | None, list[Row]]:
    """The header and a row for each process, `width` cells wide. Only the command is ever cut.
    `now`: Unix seconds. `of_one`: they are all on one device, which is not told."""
    rows = [Row("", (((note, "warn"),),)) for note in notes]
    if not found:
        return None, [Row("", ((("No processes on any GPU", "dim"),),)), *rows]
    gap = "  " if width >= _WIDE else " "
    texts = [_texts(p, now) for p in found]
    widths = {name: min(20, max(cells(name), *(cells(text[name]) for text in texts)))
              for name in texts[0]}
    for name, wanted in (("host", not of_one and any(p.host is not None for p in found)),
                         ("GPU", not of_one), ("run", any(p.ours for p in found))):
        if not wanted:
            del widths[name]
    for name in ("host mem", "CPU", "SM"):  # what goes where there is no room for the command
        if sum(widths.values()) + len(gap) * len(widths) > width - _LEAST:
            del widths[name]

    def line(text: Mapping[str, str]) -> str:
        return "".join((fit(text[name], wide) if name in _LEFT else f"{text[name]:>{wide}}") + gap
                       for name, wide in widths.items())

    drawn = [Row(p.key, (((line(text), "accent" if p.ours else ""), (fit(
        _command(p.process), max(0, width - cells(line(text)))), "")),))
        for p, text in zip(found, texts, strict=True)]
    return ((line({name: name for name in widths}) + "command", ""),), [*drawn, *rows]


_LEFT = ("host", "user", "GPU", "run")


def _texts(p: GpuProcess, now: float) -> dict[str, str]:
    """The text of each column, in their order."""
    process = p.process
    places = list(dict.fromkeys(map(short, p.devices)))
    return {"host": clean(p.host or "here"), "pid": str(process.pid),
            "user": clean(process.user or UNKNOWN, 12),
            "GPU": " ".join(places) if len(places) <= 8 else
            f"{' '.join(places[:6])} +{len(places) - 6}",
            "run": clean(p.ours).removeprefix("run "), "GPU mem": units.size(process.memory),
            "SM": units.share(process.utilization), "CPU": units.share(process.cpu),
            "host mem": units.size(process.host_memory),
            "age": UNKNOWN if process.started is None else _age(now - process.started)}


def _age(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return "< 1 min"


def _command(process: DeviceProcess) -> str:
    command = clean(process.command or UNKNOWN) if process.visible else \
        "not visible from here (in a container?)"
    return command if process.kind == "compute" else f"{process.kind} · {command}"


class ProcessTable(Rows):
    """Rows of which some are processes. A subclass fills `found` when it paints."""

    CHANGES: ClassVar[frozenset[str]] = frozenset({"end"})
    ORDERS: ClassVar[Sequence[str]]

    def __init__(self, runs: Runs, stop: Stop, *, id: str) -> None:
        """`runs`: those whose ranks are named. `stop`: asks, with a title, whether to stop one."""
        super().__init__(id=id)
        self.runs, self._stop = runs, stop
        self.order = self.ORDERS[0]
        self.found: list[GpuProcess] = []

    def paint(self) -> None:
        raise NotImplementedError

    @property
    def at_cursor(self) -> GpuProcess | None:
        """The process under the cursor; None if there is none."""
        return next((p for p in self.found if p.key == self.key_at_cursor), None)

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        at = self.at_cursor
        return of_process(at.process.pid, at.host) if at is not None else {}

    def action_order(self) -> None:
        """Sort in the next way, and go to the first process."""
        self.order = self.ORDERS[(self.ORDERS.index(self.order) + 1) % len(self.ORDERS)]
        self.paint()
        self.cursor = 0

    @guarded("end-process")
    async def action_end(self) -> None:
        """Ask, then signal the process under the cursor, or stop the run whose rank it is."""
        from gpu_panel.launch.end_process import end_or_stop

        if (at := self.at_cursor) is None:
            self.notify("No process selected", severity="warning")
            return
        await end_or_stop(self.app, at.process, at.host, self.runs(), self._stop)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()


class GpuProcessesPane(ProcessTable, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """One line for each process that is on a GPU, with all its GPUs."""

    NAME = "gpu-processes"
    TITLE = "Processes on all GPUs"
    CALLED = "the processes"
    TAB = False
    KEYS = keys.of("gpu-processes")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    ORDERS = tuple(ORDERS)
    HELP = """Every process that is on a GPU of this machine or of a host, with its owner, the run
and the rank that it is if it is one of yours, its memory on all its GPUs, and its age. x sends a
signal to one of your own, or to anybody's if you are root, and asks first."""

    def __init__(self, source: DeviceSource, runs: Runs, stop: Stop) -> None:
        super().__init__(runs, stop, id=self.NAME)
        self._source = source
        self._notes: list[str] = []

    def paint(self) -> None:
        machines = self._source.machines
        self.found = gather(machines, named_ranks(self.runs()), self.order)
        self._notes = unlisted(machines)
        many = f"{len(self.found)} by {self.order}" if self.found else "none"
        self.entitle(f"{self.TITLE} ─ {many}")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return build(self.found, self._notes, width, time.time())


class GpuProcessesScreen(PaneScreen):
    """One pane, painted while it is shown."""

    SCOPE = "gpu-processes-screen"
    PANES: ClassVar[tuple[type[Pane], ...]] = (GpuProcessesPane,)
    AUTO_FOCUS = f"#{GpuProcessesPane.NAME}"
    DEFAULT_CSS = "GpuProcessesScreen { GpuProcessesPane { height: 1fr; } }"

    def __init__(self, source: DeviceSource, runs: Runs, stop: Stop,
                 poll: Callable[[], object]) -> None:
        """`runs` and `stop`: as the table's. `poll`: has the runs read again."""
        super().__init__()
        self._poll = poll
        self._pane = GpuProcessesPane(source, runs, stop)

    def compose(self) -> ComposeResult:
        yield self._pane
        yield KeyBar()

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._paint)
        self.call_after_refresh(self._pane.paint)

    def _paint(self) -> None:
        if self.is_active:
            self._poll()
            self._pane.paint()
