"""The detail pane: everything about one device, and the processes on it. Unknown is "–", never
0."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.columns import COLUMNS
from gpu_engine.devices.records import Device, DeviceProcess, Sample
from gpu_panel import keys
from gpu_panel.charts.braille import area
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Part, Row, Rows, cells, fit, text_row, wrap
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import DeviceSource, History
from gpu_panel.launch.run_line import RunLine, ranks_by_pid

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_panel.commands.own import Values

Runs = Callable[[], Sequence[RunLine]]

_WIDE = 100
"""Cells from which on there is room for all columns of the processes."""
_LABEL = 13
_SPAN = "  last 5 min"
_AROUND = 18
"""Rows that are kept for the figures and a few processes."""
_GLYPHS = {"free": ("○", "good"), "busy": ("●", ""), "leased": ("◆", "accent"),
           "unhealthy": ("✗", "bad"), "unknown": ("?", "dim")}
"""State → glyph and style; the state's name is shown beside the glyph."""


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    device: Device | None = None
    sample: Sample | None = None
    freedom: Availability | None = None
    holder: Holder | None = None
    leases_known: bool = False
    history: History | None = None
    processes: Sequence[DeviceProcess] = ()
    """In the order of their rows."""
    ours: Mapping[int, str] = field(default_factory=dict)
    """Process id → run and rank of ours: "3f2a rank 0"."""
    now: float = 0.0
    """Unix seconds."""
    host: str | None = None


def build(details: DeviceDetails, width: int, height: int = 1) -> list[Row]:
    """Text about the device, then a row for each process, whose key is its pid. `height`: rows of
    its history."""
    device = details.device
    if device is None:
        return [text_row("No device is selected")]
    sample, freedom = details.sample or Sample(device), details.freedom
    if freedom is None:
        state, style = f"? {UNKNOWN}", "dim"
    else:
        glyph, style = _GLYPHS.get(freedom.state, ("?", "dim"))
        why = "" if freedom.reason == freedom.state else f": {clean(freedom.reason)}"
        state = f"{glyph} {freedom.state}{why}"
    if freedom is not None and freedom.state == "busy":  # the processes follow below
        state = fit(state, width)
    said = [(state, style), (_identity(device), "dim")]
    lines: list[Line] = [((part, tone),) for text, tone in said for part in wrap(text, width)]
    lines += _curves(details.history or History(), sample, width, height)
    holder = details.holder
    lease = str(holder) if holder else "nobody" if details.leases_known else UNKNOWN
    facts = [(column.name, clean(column.of(sample)), column.style(sample))
             for column in COLUMNS[2:] if not device.is_cpu]
    lines += _grid([*facts, ("lease", clean(lease), "accent" if holder else "")], width)
    wrong = [clean(text) for text in (sample.problem, *sample.health) if text]
    below = [(f"✗ {text}", "bad") for text in wrong if text not in state]
    if not wrong and sample.taken:
        below = [("✓ no hardware fault is reported", "good")]
    below += [(f"! {clean(text)}", "warn") for text in sample.notes]
    lines += [((part, tone),) for text, tone in below for part in wrap(text, width)]
    rows = [Row("", tuple(lines))]
    if device.is_cpu:
        return rows
    if not details.processes:
        text = "No processes" if sample.processes is not None else \
            "The driver does not list its processes"
        return [*rows, Row("", ((("", ""),), ((text, "dim"),)))]
    return rows + _process_rows(details, width)


def _process_rows(details: DeviceDetails, width: int) -> list[Row]:
    """A head, and a row for each process, whose key is its pid. Only the command is ever cut."""
    texts = [{
        "pid": str(p.pid), "user": clean(p.user or UNKNOWN, 12),
        "run": clean(details.ours.get(p.pid, "")), "GPU mem": units.size(p.memory),
        "age": UNKNOWN if p.started is None else _age(details.now - p.started)}
        | ({"SM": units.share(p.utilization), "CPU": units.share(p.cpu),
            "host mem": units.size(p.host_memory)} if width >= _WIDE else {})
        for p in details.processes]
    # A column of runs is of use only where one of them is on the device.
    widths = {name: max(cells(name), *(cells(text[name]) for text in texts))
              for name in texts[0] if name != "run" or details.ours}

    def line(text: Mapping[str, str]) -> str:
        return "".join((fit(text[name], wide) if name in ("user", "run") else
                        f"{text[name]:>{wide}}") + "  " for name, wide in widths.items())

    rows = [Row("", ((("", ""),), ((line({name: name for name in widths}) + "command", "dim"),)))]
    for p, text in zip(details.processes, texts, strict=True):
        command = clean(p.command or UNKNOWN) if p.visible else \
            "not visible from here (in a container?)"
        if p.container:
            command = f"in {clean(p.container)} · {command}"
        if p.kind != "compute":
            command = f"{p.kind} · {command}"
        style = "accent" if p.pid in details.ours else ""
        rows.append(Row(str(p.pid), (((line(text), style), (command, "")),)))
    return rows


def _age(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return "< 1 min"


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


def _curves(history: History, sample: Sample, width: int, height: int) -> list[Line]:
    """Utilisation and memory of the last five minutes beside each other, below the figures of
    now."""
    half, heads, drawn = (width - 2) // 2, list[Part](), list[list[str]]()
    for of, column in ((history.utilization, COLUMNS[0]), (history.memory, COLUMNS[1])):
        now, style = column.of(sample), column.style(sample)
        gap = " " * (half - cells(column.name + now + _SPAN))
        heads += [(f"{column.name}  ", "dim"), (now, style), (_SPAN, "dim"), (gap, "")]
        drawn.append([f"{row:>{half}}" for row in area(of(sample.device.id, 2 * half), height)])
    return [tuple(heads[:-1]), *(((left + "  " + right, "dim"),)
                            for left, right in zip(*drawn, strict=True))]


def _grid(facts: Sequence[tuple[str, str, str]], width: int) -> list[Line]:
    """Label, value and style of each fact, in columns of equal width."""
    count = max(1, min(4, width // 35))
    parts = [((fit(label, _LABEL), "dim"), (fit(value, width // count - _LABEL), style))
             for label, value, style in facts]
    return [sum(parts[i:i + count], ()) for i in range(0, len(parts), count)]


class DetailPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """Shows the latest sample of one device; the cursor is on a process."""

    NAME = "detail"
    TITLE = "Details of a device"
    TAB = False
    KEYS = keys.of("detail")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """Everything the driver reports about the device under the table's cursor. The
curves show the last five minutes on a scale from 0 to 100 %; a dash means unknown. Left and right
go to another device. Commands of your own (settings.toml) get the process under the cursor."""

    def __init__(self, source: DeviceSource, runs: Runs) -> None:
        """`runs`: those whose ranks are named."""
        super().__init__(id=self.NAME)
        self._source, self._runs = source, runs
        self._device: str | None = None
        self.shown = DeviceDetails()

    def show_device(self, device: str | None) -> None:
        """Show the device of this row; None: no device."""
        self._device = device
        self.paint()

    def paint(self) -> None:
        """Draw the latest sample of the device."""
        from gpu_engine.devices import leases  # only where details are shown

        source, (host, name) = self._source, row_keys.split(self._device or "")
        machine = source.machine(host) if self._device is not None else None
        device = machine.find(name) if machine is not None else None
        self.shown = DeviceDetails()
        title = "Device"
        if machine is not None and device is not None:
            sample = machine.snapshot.of(device.id) if machine.snapshot else None
            listed = sorted((sample.processes if sample else None) or (),
                            key=lambda p: -(p.memory or 0))
            ranks = ranks_by_pid(self._runs()) if host is None else {}
            self.shown = DeviceDetails(
                device, sample, (machine.freedom or {}).get(device.id),
                source.holders.get(leases.key(device)) if host is None else None,
                host is None and source.freedom is not None, machine.history, listed,
                {pid: f"{run.id} rank {rank}" for pid, (run, rank) in ranks.items()
                 if pid in {p.pid for p in listed}},
                time.time(), host)
            count, where = len(listed), f" on {clean(host)}" if host is not None else ""
            title = f"{device.label}{where} ─ {clean(device.name)}" + (
                f" · {count} process{'es' if count > 1 else ''}" if count else "")
        self.entitle(title, "i close · ← → other device")
        self.repaint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        return None, build(self.shown, width, min(8, max(1, self.size.height - _AROUND)))

    @property
    def at_cursor(self) -> DeviceProcess | None:
        """The process under the cursor; None if there is none."""
        return next((p for p in self.shown.processes if str(p.pid) == self.key_at_cursor), None)

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        process = self.at_cursor
        return of_process(process.pid, self.shown.host) if process is not None else {}

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
