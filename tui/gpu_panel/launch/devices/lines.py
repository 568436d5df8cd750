"""The devices and their figures as lines of text. Pure, so that tests can read the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Device, Inventory, Sample, Snapshot
from gpu_engine.spec import modes
from gpu_panel.common import load, units
from gpu_panel.common.rows import Line, Part, Row, cells, fit, wrap
from gpu_panel.launch.devices import row_keys

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.remote.reach.remote_devices import HostSeen
    from gpu_panel.launch.devices.history import History

TICKED, UNTICKED, NOT_TO_TICK = "▣", "☐", "·"
STALE_AFTER = 3.0
"""Seconds after which the age of figures is shown."""
PATIENCE = 2.0
"""Seconds after which it is explained why the devices are not known yet."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Everything the device table shows."""

    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    ticked: tuple[str, ...] = ()
    """Ids of the ticked devices, in the order of the ranks."""
    mode: str = "ddp"
    """The mode, which decides what the order of ticked devices means: see `role`."""
    first_rank: int = 0
    """The rank of the first ticked device; above 0 on all machines but the first."""
    freedom: Mapping[str, Availability] | None = None
    ours: Mapping[str, str] | None = None
    """Key of a device's row → the run of ours on it: "run 3f2a rank 0"."""
    notes: tuple[tuple[str, str], ...] = ()
    """(text, style) of what stands below the devices, such as problems."""
    history: History | None = None
    order: str = "index"
    """One of ORDERS."""
    hosts: tuple[HostSeen, ...] = ()
    """Other machines, whose devices are listed below this one's."""
    now: float = 0.0
    """Monotonic seconds, for the age of the hosts' figures."""
    histories: Mapping[str, History] = field(default_factory=dict)
    """Host → history of its devices."""
    looking: float = 0.0
    """Seconds for which the devices have been looked for."""
    wanted: frozenset[str] = frozenset()
    """Keys of the rows of devices that the person waits for."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """This machine or a host, with its devices."""

    inventory: Inventory
    snapshot: Snapshot | None
    freedom: Mapping[str, Availability] | None
    history: History | None
    host: HostSeen | None = None

    @property
    def can_run(self) -> bool:
        return self.host is None or self.host.can_run

    def key(self, device: Device) -> str:
        """The key of a device's row."""
        return row_keys.of(self.host.host.name if self.host is not None else None, device.id)

    def sample(self, device: Device) -> Sample:
        found = self.snapshot.of(device.id) if self.snapshot is not None else None
        return found or Sample(device)


ORDERS = {"index": "by index", "utilization": "busiest first", "memory": "fullest first",
          "free": "free first"}
"""How the table can be sorted → the words for it in the title."""


def build(table: DeviceTable, width: int) -> tuple[Line | None, list[Row]]:
    """The header and the rows, `width` cells wide."""
    if table.inventory is None:
        return None, _looking(table.looking, width)
    own = _Machine(table.inventory, table.snapshot, table.freedom, table.history)
    others = [_Machine(seen.inventory or Inventory((), ""), seen.snapshot, seen.freedom,
                       table.histories.get(seen.host.name), seen) for seen in table.hosts]
    pairs = {id(m): [(d, m.sample(d)) for d in m.inventory.devices] for m in (own, *others)}
    every = [pair for found in pairs.values() for pair in found]
    rows: list[Row] = []
    header = columns = None
    if every:
        columns = _columns([d for d, _ in every], [s for _, s in every], width,
                           table.history is not None)
        header = _header(columns)

    def devices(machine: _Machine) -> None:
        if columns is not None:
            rows.extend(_device(table, machine, device, sample, columns, width)
                        for device, sample in _sorted(table, machine, pairs[id(machine)]))

    if table.hosts:
        rows.append(_text("this machine", "strong", width))
    devices(own)
    if not own.inventory.devices:
        rows.append(_text("No devices. Is the NVIDIA driver loaded (nvidia-smi)?", "warn", width))
    if table.inventory.problem:
        rows.append(_text("! " + clean(table.inventory.problem), "warn", width))
    if table.inventory.inherited_visible is not None:
        rows.append(_text(f"{table.inventory.visible_variable} was set when the panel started: "
                           f"\"{clean(table.inventory.inherited_visible)}\". Only those GPUs are "
                           "offered; 3→0 means that GPU 3 is the first of them", "dim",
                           width))
    for machine, seen in zip(others, table.hosts, strict=True):
        rows.append(_host(seen, table.now, width))
        devices(machine)
        rows += _unseen(table, machine, width)
    rows += [_text(text, style, width) for text, style in table.notes]
    return header, rows


def _looking(seconds: float, width: int) -> list[Row]:
    """What is shown until the devices are known, with the reason if that takes long."""
    rows = [_text("Looking for devices …", "dim", width)]
    if seconds >= PATIENCE:
        from gpu_engine.devices.discover import PATIENCE as DISCOVERY  # rare, and much to import

        rows.append(_text(
            f"The driver has not answered for {seconds:.0f} s. It may be starting; if nvidia-smi "
            "hangs too, it is stuck, often since an error that \"dmesg | grep -i xid\" shows. "
            f"After {DISCOVERY:.0f} s the panel goes on with CPU slots; c looks for GPUs again.",
            "warn", width))
    return rows


def _host(seen: HostSeen, now: float, width: int) -> Row:
    """The line of a host, and below it why it can't be used."""
    parts: list[Part] = [(clean(seen.host.name), "strong")]
    if seen.host.label:
        parts.append((f"  {clean(seen.host.label)}", "dim"))
    if seen.state == "asking":
        parts.append(("  asking …", "dim"))
    elif seen.freedom:
        free = sum(f.free for f in seen.freedom.values())
        parts.append((f"  {free} of {len(seen.freedom)} free", "dim"))
    age = seen.age(now)
    if age is not None and age > STALE_AFTER:
        when = f"{age:.0f} s ago" if age < 90 else units.ago(age)
        parts.append((f"  seen {when}", "warn"))
    lines: list[Line] = [tuple(parts)]
    if seen.inventory is not None and not seen.inventory.devices and seen.state != "away":
        lines.append((("  no devices", "dim"),))
    if seen.inventory is not None and seen.inventory.problem:
        lines += _indented("! " + seen.inventory.problem, "warn", width)
    if seen.snapshot is not None and seen.snapshot.problem and seen.state == "seen":
        lines += _indented("! " + seen.snapshot.problem, "warn", width)
    if seen.reason is not None:
        what = "! " if seen.state == "away" else "view only: "
        lines += _indented(what + seen.reason, "bad" if seen.state == "away" else "warn", width)
    return Row("", tuple(lines))


def _unseen(table: DeviceTable, machine: _Machine, width: int) -> list[Row]:
    """Ticked devices of a host that it does not show, as it was never reached: so that the ticks
    can be taken away."""
    shown = {machine.key(device) for device in machine.inventory.devices}
    name = machine.host.host.name if machine.host is not None else None
    return [Row(key, (((TICKED, "accent"), (" " + fit(
        f"{clean(row_keys.split(key)[1]) or 'all'}  not seen yet", width - 2).rstrip(), "warn")),))
        for key in table.ticked if row_keys.split(key)[0] == name and key not in shown]


def _indented(text: str, style: str, width: int) -> list[Line]:
    return [(("  " + part, style),) for part in wrap(clean(text), width - 2)]


def _sorted(table: DeviceTable, machine: _Machine, pairs: list[tuple[Device, Sample]]
            ) -> list[tuple[Device, Sample]]:
    """The devices in the wanted order: equal ones by index, unknown ones last."""
    if table.order == "utilization":
        return sorted(pairs, key=lambda p: -_or(p[1].utilization, -1.0))
    if table.order == "memory":
        return sorted(pairs, key=lambda p: -_or(p[1].memory_used, -1))
    if table.order == "free":
        order = ("free", "unknown", "busy", "leased", "unhealthy")
        states = machine.freedom or {}
        return sorted(pairs, key=lambda p: order.index(
            states[p[0].id].state if p[0].id in states else "unknown"))
    return pairs


def _or(value: float | None, unknown: float) -> float:
    return unknown if value is None else value


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """The width of each column in cells; 0 for a column that is not shown."""

    id: int
    name: int
    util: int
    memory: int
    temp: int
    power: int
    curve: int = 0


def _columns(devices: Sequence[Device], samples: Sequence[Sample], width: int,
             curves: bool) -> DeviceColumns:
    ids = max(len(numbered(d)) for d in devices)
    # Keep the columns while a driver fails, so that those beside them don't move.
    failing = any(s.problem for s in samples)
    temp = 4 if failing or any(s.temperature is not None for s in samples) else 0
    power = 8 if failing or any(s.power is not None for s in samples) else 0
    wanted = min(26, max(len(_name(d)) for d in devices))

    def room(util: int, memory: int, temp: int, power: int) -> int:
        used = 2 + ids + 2 + (util + 5 + 2) + (memory + 10 + 2)
        used += (temp + 2 if temp else 0) + (power + 2 if power else 0)
        return width - used

    for util, curve, memory in _WITH_CURVES if curves else ():
        if room(util, memory, temp, power) - curve - 2 >= wanted:
            return DeviceColumns(ids, wanted, util, memory, temp, power, curve)
    for curve, memory in _WITHOUT_NAMES if curves else ():
        if room(0, memory, temp, power) - curve >= 0:
            return DeviceColumns(ids, 0, 0, memory, temp, power, curve)
    for bar, enough, t, p in ((12, 26, temp, power), (10, 26, temp, power), (8, 16, temp, power),
                              (6, 10, temp, power), (5, 7, temp, 0), (4, 7, 0, 0), (0, 0, 0, 0)):
        name = room(bar, bar, t, p)
        if name >= min(wanted, enough):
            break
    return DeviceColumns(ids, max(0, min(name, wanted)), bar, bar, t, p)


_WITH_CURVES = ((12, 24, 12), (10, 20, 10), (10, 12, 10), (8, 12, 8), (8, 10, 8), (0, 16, 8),
                (0, 10, 6), (0, 8, 4))
"""Widths of the bar of utilisation, its curve and the bar of memory, best first. Where both do not
fit, the curve says more than the bar."""
_WITHOUT_NAMES = ((16, 8), (12, 6), (8, 4))
"""Widths of the curve and the bar of memory where the names move to the second line."""


def _name(device: Device) -> str:
    """The card's name without "NVIDIA". A slice's size comes first, as there may be no room for
    the end."""
    name = clean(device.name).removeprefix("NVIDIA ")
    card, between, size = name.partition(f" {device.kind.upper()} ")
    return f"{size.partition(' ')[0]} of {card}" if device.is_slice and between else name


def _header(c: DeviceColumns) -> Line:
    text = "  " + fit("#", c.id) + "  " + (fit("name", c.name) + "  " if c.name else "")
    text += fit("util", c.util + 5) + "  " + (fit("2 min", c.curve) + "  " if c.curve else "")
    text += fit("memory", c.memory + 10)
    text += ("  " + fit("temp", c.temp) if c.temp else "")
    text += ("  " + fit("power", c.power) if c.power else "")
    return ((text, ""),)


def _device(table: DeviceTable, machine: _Machine, device: Device, sample: Sample, c: DeviceColumns,
            width: int) -> Row:
    key = machine.key(device)
    on = key in table.ticked
    box = TICKED if on else UNTICKED if machine.can_run else NOT_TO_TICK
    parts: list[Part] = [
        (box, "accent" if on else "dim"),
        (" " + fit(numbered(device), c.id) + "  ", "strong" if on else ""),
        (fit(_name(device), c.name) + "  " if c.name else "", ""),
    ]
    parts += bar(sample.utilization, c.util, load.of_use(sample.utilization))
    parts.append((f"{percent(sample.utilization):>5}  ", ""))
    if c.curve:
        curve = machine.history.utilization(device.id, c.curve) if machine.history else ""
        parts.append((fit(curve, c.curve) + "  ", load.of_use(sample.utilization)))
    total = sample.memory_total or device.memory_total
    share = sample.memory_used / total if sample.memory_used is not None and total else None
    parts += bar(share, c.memory, load.of_memory(share))
    parts.append((f"{_of_total(sample.memory_used, total):>10}", ""))
    if c.temp:
        heat = units.UNKNOWN if sample.temperature is None else f"{sample.temperature:.0f}°C"
        parts.append((f"  {heat:>4}", load.of_heat(sample.temperature)))
    if c.power:
        parts.append((f"  {_watts(sample):>8}", load.of_power(sample.power, sample.power_limit)))
    below = _second(table, machine, device, sample, width, "" if c.name else _name(device))
    return Row(key, (tuple(parts), below))


def role(table: DeviceTable, key: str) -> str:
    """The rank of a ticked device, or under DataParallel its `cuda:` number. Empty if only one
    device is ticked or the mode uses only one."""
    places = [i for i, name in enumerate(table.ticked) if name == key]
    mode = modes.find(table.mode)
    if len(table.ticked) < 2 or not places or mode is None \
            or mode.most_devices == 1:
        return ""
    if not mode.process_a_device:
        return f"cuda:{places[0]}"
    return "rank " + ", ".join(str(table.first_rank + i) for i in places)


def in_machines_order(table: DeviceTable) -> bool:
    """Whether the ticked devices are in the order of the machines and their numbers."""
    numbers = {key: i for i, key in enumerate(keys(table))}
    order = [numbers[name] for name in table.ticked if name in numbers]
    return order == sorted(order)


def keys(table: DeviceTable) -> list[str]:
    """The keys of all devices' rows, machine by machine, in the order of each machine's numbers."""
    own = table.inventory.devices if table.inventory is not None else ()
    return [d.id for d in own] + [
        row_keys.of(seen.host.name, d.id) for seen in table.hosts
        if seen.inventory is not None for d in seen.inventory.devices]


def _second(table: DeviceTable, machine: _Machine, device: Device, sample: Sample,
            width: int, name: str) -> Line:
    """The line below a device: its rank, who uses it, and what is wrong with it; at the end
    `name`, if there is room."""
    text, style = _use(table, machine, device, sample)
    waits = "notifies when free" if machine.key(device) in table.wanted else ""
    mine = "".join(f"{part} · " for part in (role(table, machine.key(device)), waits) if part)
    held = [t for t in sample.throttle or () if t not in text]
    extra = f" · {', '.join(held)}" if held else ""
    room = max(0, width - 4 - len(mine))
    said = text + clean(extra)
    said = fit(_shorter(said, sample, cells(said) - room), room).rstrip()
    line = (("  └ ", "dim"), (mine, "accent"), (said, style))
    left = room - cells(said) - cells(name)
    return (*line, (" " * left + name, "dim")) if name and left >= 2 else line


def _shorter(text: str, sample: Sample, over: int) -> str:
    """`text` with the command of a process in it cut by `over` cells, so that memory and age,
    which stand behind it, can be read."""
    first = max(sample.processes or (), key=lambda p: p.memory or 0, default=None)
    command = clean(first.command or "") if first is not None else ""
    while over > 0 and command and command not in text:
        command = command[:-1]  # the text may have only its beginning
    if over <= 0 or len(command) < _LEAST_COMMAND:
        return text
    short = fit(command, max(_LEAST_COMMAND, cells(command) - over - 1))
    return text.replace(command + "…", command, 1).replace(command, short, 1)


_LEAST_COMMAND = 8
"""Cells that a command keeps when its line is cut."""


def _use(table: DeviceTable, machine: _Machine, device: Device, sample: Sample) -> tuple[str, str]:
    ours = (table.ours or {}).get(machine.key(device))
    freedom = (machine.freedom or {}).get(device.id)
    if sample.problem:
        return "! " + clean(sample.problem), "bad"
    if ours:
        return "● " + clean(ours), "accent"
    if not machine.can_run and freedom is None:
        return "users unknown", "dim"
    if freedom is None or freedom.state == "unknown":
        return (clean(freedom.reason) if freedom else "…"), "dim"
    if freedom.state == "free":
        return "free", "good"
    if freedom.state == "unhealthy":
        return "! " + clean(freedom.reason), "bad"
    return clean(freedom.reason), "warn"


def short(device: Device) -> str:
    """A device's id in the first column: "0", "0:1" for a MIG slice, "cpu:0"."""
    return clean(device.label.partition(" ")[2] if device.is_slice else device.id)


def numbered(device: Device) -> str:
    """The id, and after an arrow its position in an inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    position = "" if device.visible_index is None else f"→{device.visible_index}"
    return short(device) + position


def bar(share: float | None, width: int, style: str = "accent") -> list[Part]:
    """A bar of `width` cells: its filled part, in eighths of a cell and `style`, and the rest."""
    if width <= 0:
        return []
    if share is None:
        return [("░" * width, "track")]
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    return [(filled, style), ("░" * (width - len(filled)), "track")]


def percent(share: float | None) -> str:
    """0.74 → "74%"."""
    return units.UNKNOWN if share is None else f"{share * 100:.0f}%"


def _of_total(used: int | None, total: int | None) -> str:
    """"34/80G", with a decimal below ten: "4.1/8.0G"."""
    if total is None:
        return units.UNKNOWN if used is None else f"{_size(used)}G"
    return f"{units.UNKNOWN if used is None else _size(used)}/{_size(total)}G"


def _size(count: int) -> str:
    value = count / (1 << 30)
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _watts(sample: Sample) -> str:
    if sample.power is None:
        return units.UNKNOWN
    if sample.power_limit is None:
        return f"{sample.power:.0f}W"
    return f"{sample.power:.0f}/{sample.power_limit:.0f}W"


def _text(text: str, style: str, width: int) -> Row:
    return Row("", tuple(((part, style),) for part in wrap(text, width)))
