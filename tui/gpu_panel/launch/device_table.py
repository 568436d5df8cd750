"""The device table as lines of text: a line for each device, with its last five minutes.

The figures are the columns of `gpu_engine.devices.columns`. Each run of ours has a hue of its own,
and what others use is dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.columns import IN_TABLE, Column
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.spec import modes
from gpu_panel.charts.braille import bar, meter
from gpu_panel.common.rows import Line, Part, Row, cells, fit, wrap
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import Machine, spread

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.remote.reach.watcher import HostSeen
    from gpu_panel.launch.device_source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.run_line import RunLine

TICKED, UNTICKED = "▣", "☐"
STALE_AFTER = 3.0
"""Seconds after which the age of figures is shown."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A run of ours that is on a device."""

    run: str
    rank: int
    name: str
    since: str
    def __str__(self) -> str:
        return f"● run {self.run} rank {self.rank} · {clean(self.name)} · {self.since}"


@dataclass(frozen=True, slots=True)
class DeviceTable:
    machines: Sequence[Machine] = (Machine(),)
    """This machine, then the others, whose devices are listed below."""
    ticked: tuple[str, ...] = ()
    """Keys of the ticked devices' rows, in the order of the ranks."""
    mode: str = "ddp"
    """The mode, which decides what the order of ticked devices means: see `role`."""
    first_rank: int = 0
    """The rank of the first ticked device; above 0 on all machines but the first."""
    ours: Mapping[str, Ours] = field(default_factory=dict)
    """Key of a device's row → the run of ours on it."""
    notes: tuple[tuple[str, str], ...] = ()
    """(text, style) of what stands below the devices, such as problems."""
    now: float = 0.0
    """Monotonic seconds, for the age of the hosts' figures."""
    wanted: frozenset[str] = frozenset()

    @property
    def keys(self) -> list[str]:
        """The keys of all devices' rows, machine by machine, in the order of their numbers."""
        return [machine.key(device) for machine in self.machines for device in machine.devices]

    def hue_of(self, run: str) -> str:
        """The style of what belongs to a run of ours: the hue of the place of its first device, so
        that no two runs beside each other have the same."""
        place = next((i for i, key in enumerate(self.keys)
                      if (ours := self.ours.get(key)) is not None and ours.run == run), 0)
        return f"hue {place}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A device with what is said of it."""

    key: str
    box: Part
    number: str
    name: str
    sample: Sample
    machine: Machine
    role: str
    """Its rank in the next run, or its `cuda:` number, and whether it is waited for."""
    use: Part
    brief: str
    """`use` in a few words."""
    hue: str
    """The style of its bars and its history: that of the run of ours on it."""
    tone: str
    """The style of its name and figures: what others use is dimmer."""

    @property
    def about(self) -> str:
        """All that a line may have no room for: "A100 · rank 0 · alice · python train.py"."""
        held = ", ".join(self.sample.throttle or ())
        role, waits, _ = self.role.partition("♪")
        return " · ".join(filter(None, (self.name, role.strip(), "notifies when free" * bool(waits),
                                        self.use[0], clean(held))))


@dataclass(frozen=True, slots=True)
class Built:
    header: Line | None
    rows: list[Row]
    about: Mapping[str, str] = field(default_factory=dict)
    """Key of a device's row → all that is said of it."""


def build(table: DeviceTable, width: int) -> Built:
    """The table, `width` cells wide."""
    here, *others = table.machines
    if here.inventory is None:
        return Built(None, [_text("Looking for devices …", "dim", width)])
    shown = {m.host: [_shown(table, m, d, (m.snapshot and m.snapshot.of(d.id)) or Sample(d))
                      for d in m.devices] for m in table.machines}
    every = [device for devices in shown.values() for device in devices]
    layout = _Layout.of(every, width) if every else None
    rows = [_text("this machine", "strong", width)] if others else []
    for machine in table.machines:
        if machine.seen is not None:
            rows.append(_host(machine.seen, table.now, width))
        rows += [Row(d.key, (layout.line(d, width),)) for d in shown[machine.host] if layout]
        rows += _of_own(here.inventory, width) if machine is here else \
            _unseen(table, machine, width)
    rows += [_text(text, style, width) for text, style in table.notes]
    return Built(layout.header if layout else None, rows, {d.key: d.about for d in every})


_GROW = (("who", 12), ("utilisation", 6), ("memory", 6), ("name", 26), ("history", 10),
         ("utilisation", 12), ("memory", 10), ("who", 26), ("history", 20), ("utilisation", 20),
         ("memory", 16), ("who", 60), ("history", 60), ("utilisation", 40), ("memory", 30))
"""How the parts of a row that may be missing get their cells, one step after the other."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a row has room for."""

    ids: int
    columns: tuple[tuple[Column, int], ...]
    """With the cells of their figures."""
    cells: Mapping[str, int]
    """Of the bar of a column, of the name, of who uses it and of the history; 0: it has no room."""

    @classmethod
    def of(cls, devices: Sequence[_Shown], width: int) -> _Layout:
        ids = max(len(d.number) for d in devices)
        # Keep the columns while a driver fails, so that those beside them don't move.
        failing = any(d.sample.problem for d in devices)
        slots = all(d.sample.device.is_cpu for d in devices)  # whose memory is the machine's
        columns = [(c, max(c.width, *(cells(c.of(d.sample)) for d in devices)))
                   for c in IN_TABLE if not (slots and c.name == "memory")
                   and (failing or any(c.of(d.sample) != UNKNOWN for d in devices))]
        while (room := width - ids - 3 - sum(wide + 1 for _, wide in columns)) < 4 and columns:
            columns.pop()
        most = {"name": max(cells(d.name) for d in devices),
                "who": max(26, *(cells(d.role) + 2 + cells(d.brief) for d in devices)),
                "history": 60} | {c.name: 99 for c, _ in columns if c.share is not None}
        found = dict.fromkeys(("name", "who", "history", "utilisation", "memory"), 0)
        for part, wanted in _GROW:
            wanted = min(wanted, most.get(part, 0))
            more = wanted - found[part] + (not found[part])
            if wanted > found[part] and (more <= room or found[part]):
                more = min(more, room)
                found[part] += more - (not found[part])
                room -= more
        return cls(ids, tuple(columns), found | {"history": spread(found["history"])[0]})

    @property
    def header(self) -> Line:
        of = self.cells
        text = f"  {fit('#', self.ids)} " + (fit("name", of["name"]) + " " if of["name"] else "")
        for column, wide in self.columns:
            gauge = of.get(column.name, 0)
            text += fit(column.title, gauge + 1 + wide) + " " if gauge \
                else f"{column.title:>{wide}} "
        return ((text + fit("used by", of["who"] + 1)
                 + ("last 5 min" if of["history"] >= 10 else ""), ""),)

    def line(self, device: _Shown, width: int) -> Line:
        of = self.cells
        parts: list[Part] = [device.box, (f" {fit(device.number, self.ids)} ",
                                          "strong" if device.box[1] == "accent" else "")]
        if of["name"]:
            parts.append((fit(device.name, of["name"]) + " ", device.tone))
        role = device.role.replace("rank ", "r")
        role = f"→{role} " if role else ""
        if device.sample.problem:
            room = width - sum(cells(text) for text, _ in parts) - cells(role)
            return (*parts, (role, "accent"), (fit(device.use[0], room).rstrip(), device.use[1]))
        for column, wide in self.columns:
            if column.share is not None and (gauge := of.get(column.name, 0)):
                parts.append((meter(column.share(device.sample), gauge) + " ", device.hue))
            parts.append((f"{column.of(device.sample):>{wide}} ",
                          column.style(device.sample) or device.tone))
        parts += [(role, "accent"), (fit(device.brief, of["who"] - cells(role)), device.use[1])]
        if of["history"]:
            history = device.machine.history
            drawn = history.utilization(device.sample.device.id, of["history"]) if history else []
            parts += [(" ", ""), bars(drawn, device.hue)]
        return tuple(parts)


def _shown(table: DeviceTable, machine: Machine, device: Device, sample: Sample) -> _Shown:
    key = machine.key(device)
    on, ours = key in table.ticked, table.ours.get(key)
    box = TICKED if on else UNTICKED
    use = _use(table, machine, device, sample, ours)
    others = ours is None and not on and use[1] != "good"
    # Of another's process the figures beside it say the rest: "alice · python3 train.py".
    brief = f"● {clean(ours.name)} rank {ours.rank}" if ours else " · ".join(
        use[0].split(" · ")[:2])
    return _Shown(key, (box, "accent" if on else "dim"), numbered(device), _name(device), sample,
                  machine, " ".join(filter(None, (role(table, key), "♪" * (key in table.wanted)))),
                  (use[0], use[1] or ("dim" if others else "")),
                  brief, table.hue_of(ours.run) if ours else "dim", "dim" if others else "")


def _use(table: DeviceTable, machine: Machine, device: Device, sample: Sample, ours: Ours | None
         ) -> Part:
    """Who uses a device, or what is wrong with it."""
    freedom = (machine.freedom or {}).get(device.id)
    if sample.problem:
        return "! " + clean(sample.problem), "bad"
    if ours:
        return str(ours), table.hue_of(ours.run)
    if freedom is None:
        return "…", "dim"
    why = clean(freedom.reason)
    if freedom.state == "unhealthy":
        return "! " + why, "bad"
    return why, "dim" if freedom.state == "unknown" else "good" if why == "free" else ""


def role(table: DeviceTable, key: str) -> str:
    """The rank of a ticked device, under DataParallel its `cuda:` number; empty: it is alone."""
    places = [i for i, name in enumerate(table.ticked) if name == key]
    mode = modes.find(table.mode)
    if len(table.ticked) < 2 or not places or mode is None or mode.most_devices == 1:
        return ""
    if not mode.process_a_device:
        return f"cuda:{places[0]}"
    return "rank " + ", ".join(str(table.first_rank + i) for i in places)


def _name(device: Device) -> str:
    """The card's name without "NVIDIA". A slice's size comes first: the end may be cut."""
    name = clean(device.name).removeprefix("NVIDIA ")
    card, between, size = name.partition(f" {device.kind.upper()} ")
    return f"{size.partition(' ')[0]} of {card}" if device.is_slice and between else name


def short(device: Device) -> str:
    return clean(device.label.partition(" ")[2] if device.is_slice else device.id)


def numbered(device: Device) -> str:
    """The id, and after an arrow its position in an inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    position = "" if device.visible_index is None else f"→{device.visible_index}"
    return short(device) + position


# --- what stands between and below the devices -------------------------------------------------


def _text(text: str, style: str, width: int) -> Row:
    return Row("", tuple(((part, style),) for part in wrap(text, width)))


def _of_own(inventory: Inventory, width: int) -> list[Row]:
    rows: list[Row] = []
    if not inventory.devices:
        rows.append(_text("No devices. Is the NVIDIA driver loaded (nvidia-smi)?", "warn", width))
    if inventory.problem:
        rows.append(_text("! " + clean(inventory.problem), "warn", width))
    if inventory.inherited_visible is not None:
        rows.append(_text(f"{inventory.visible_variable} was set when the panel started: "
                          f"\"{clean(inventory.inherited_visible)}\". Only those GPUs are "
                          "offered; 3→0 means that GPU 3 is the first of them", "dim", width))
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
    below: list[tuple[str, str]] = []
    if seen.inventory is not None and not seen.inventory.devices and seen.state != "away":
        below.append(("no devices", "dim"))
    if seen.inventory is not None and seen.inventory.problem:
        below.append((f"! {seen.inventory.problem}", "warn"))
    if seen.snapshot is not None and seen.snapshot.problem and seen.state == "seen":
        below.append((f"! {seen.snapshot.problem}", "warn"))
    if seen.reason is not None:
        below.append((f"! {seen.reason}", "bad"))
    return Row("", (tuple(parts), *((("  " + part, style),) for text, style in below
                                    for part in wrap(clean(text), width - 2))))


def _unseen(table: DeviceTable, machine: Machine, width: int) -> list[Row]:
    """Ticked devices of a host that it does not show, as it was never reached: so that the ticks
    can be taken away."""
    there = {machine.key(device) for device in machine.devices}
    return [Row(key, (((TICKED, "accent"), (" " + fit(
        f"{clean(row_keys.split(key)[1]) or 'all'}  not seen yet", width - 2).rstrip(), "warn")),))
        for key in table.ticked if row_keys.split(key)[0] == machine.host and key not in there]


def title(name: str, source: DeviceSource, table: DeviceTable) -> str:
    """The pane's title: how many are ticked and free, and whether the ranks have another order."""
    if source.inventory is None or not (source.inventory.devices or source.hosts):
        return name
    judged = [f for machine in table.machines for f in (machine.freedom or {}).values()]
    counted = f" · {sum(f.free for f in judged)} free" if judged else ""
    places = [table.keys.index(key) for key in table.ticked if key in table.keys]
    ranks = "" if places == sorted(places) else " · ranks in your order"
    return f"{name} ─ {len(set(table.ticked))} ticked{counted}{ranks}"


def notes(source: DeviceSource, draft: Draft | None, resolved: bool,
          problems: Sequence[Problem]) -> tuple[tuple[str, str], ...]:
    """Notes and problems, with styles. `resolved`: whether the preset's devices are known."""
    inventory, aside = source.inventory, source.gpus_aside
    found = [(f"The preset asks for {name}, which is not here", "warn")
             for name in (draft.absent if draft else ())]
    if source.hosts_problem is not None:
        found.append((f"! {clean(source.hosts_problem)}", "warn"))
    if aside:
        many = f"{aside} GPUs" if aside > 1 else "GPU"
        found.append((f"c shows this machine's {many} again", "dim"))
    if resolved and draft is not None and draft.missing \
            and inventory is not None:
        taken = [f"{d.label}: {clean(f.reason)}" for d in inventory.devices
                 if (f := (source.freedom or {}).get(d.id)) is not None and not f.free]
        if len(draft.ids) < min(draft.picks or 0, len(inventory.devices)):
            found.append((f"The preset asks for the {draft.picks} freest devices, and "
                          f"{len(draft.ids) or 'none'} can be taken{'; ' * bool(taken)}"
                          f"{''.join(taken[:1])}. Tick others yourself, or Q puts the run into the "
                          "queue", "warn"))
    if row_keys.ANY in source.wanted:
        found.append(("You will be notified when any device is free (W)", "accent"))
    return (*found, *((f"✗ {p.message}", "bad") for p in problems))


# --- runs of ours on devices -------------------------------------------------------------------


def of_runs(runs: Sequence[RunLine], now: float) -> dict[str, Ours]:
    """Key of a device's row → the run of ours on it. `now`: Unix seconds."""
    return {device: Ours(run.id, rank, run.name, units.clock(now - (run.started or run.created)))
            for run in runs for device, rank in run.devices}


# --- graphs of load ----------------------------------------------------------------------------


def bars(values: Sequence[float | None], style: str) -> Part:
    """A bar of eight possible heights for each value; a gap where nothing is known."""
    return "".join(" " if v is None else bar(v) for v in values), style


def axis(width: int) -> str:
    """What stands above a graph, as far as there is room: "-5 min           now"."""
    return "-5 min" + f"{'now':>{width - 6}}" if width >= 12 else f"{'now':>{width}}"[:width]
