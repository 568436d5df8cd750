"""The devices and their figures as lines of text. Pure, so that tests can read the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_engine.devices.records import Device, Inventory, Sample, Snapshot
from gpu_engine.spec import modes
from gpu_panel.charts.sparkline import bar
from gpu_panel.common import units
from gpu_panel.common.rows import Line, Part, Row, cells, fit, wrap
from gpu_panel.launch.devices import graphs, row_keys, shapes
from gpu_panel.launch.devices.shapes import Facts
from gpu_panel.launch.devices.source import Machine, of_hosts

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.devices.availability import Availability
    from gpu_engine.remote.reach.remote_devices import HostSeen
    from gpu_panel.launch.devices.history import History
    from gpu_panel.launch.devices.source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.runs.line import RunLine


TICKED, UNTICKED, NOT_TO_TICK = "▣", "☐", "·"
STALE_AFTER = 3.0
"""Seconds after which the age of figures is shown."""
PATIENCE = 2.0
"""Seconds after which it is explained why the devices are not known yet."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A run of ours that is on a device."""

    run: str
    rank: int
    name: str
    since: str
    hue: int = 1
    """Number of its hue, from 1."""

    def __str__(self) -> str:
        return f"● run {self.run} rank {self.rank} · {clean(self.name)} · {self.since}"

    @property
    def short(self) -> str:
        return f"● r{self.rank} {clean(self.name)}"


@dataclass(frozen=True, slots=True)
class DeviceTable:
    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    ticked: tuple[str, ...] = ()
    """Keys of the ticked devices' rows, in the order of the ranks."""
    mode: str = "ddp"
    """The mode, which decides what the order of ticked devices means: see `role`."""
    first_rank: int = 0
    """The rank of the first ticked device; above 0 on all machines but the first."""
    freedom: Mapping[str, Availability] | None = None
    ours: Mapping[str, Ours] | None = None
    """Key of a device's row → the run of ours on it."""
    notes: tuple[tuple[str, str], ...] = ()
    """(text, style) of what stands below the devices, such as problems."""
    history: History | None = None
    order: str = "index"
    hosts: tuple[HostSeen, ...] = ()
    """Other machines, whose devices are listed below this one's."""
    now: float = 0.0
    """Monotonic seconds, for the age of the hosts' figures."""
    histories: Mapping[str, History] = field(default_factory=dict)
    """Host → history of its devices."""
    looking: float = 0.0
    """Seconds for which the devices have been looked for."""
    wanted: frozenset[str] = frozenset()


ORDERS = {"index": "by index", "utilization": "busiest first", "memory": "fullest first",
          "free": "free first"}


@dataclass(frozen=True, slots=True)
class Built:
    header: Line | None
    rows: list[Row]
    wanted: int
    """Lines that its content is worth, header included; it has more where they are given."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Key of a device's row → what there is no room for on its line; empty where there is."""


def build(table: DeviceTable, width: int, height: int | None = None) -> Built:
    """The table `width` cells wide. `height`: lines that there are; None: as many as it wants."""
    inventory = table.inventory
    if inventory is None:
        looking = _looking(table.looking, width)
        return Built(None, looking, _lines(looking))
    machines = _machines(table)
    facts = {m.host: [_facts(table, m, d, s) for d, s in _sorted(table, m)] for m in machines}
    every = [f for found in facts.values() for f in found]

    def rows(drawn: Mapping[str, Row]) -> list[Row]:
        """All rows, with those of the devices that are drawn."""
        out = [_text("this machine", "strong", width)] if table.hosts else []
        out += [drawn[f.key] for f in facts[None] if f.key in drawn]
        out += _of_own(inventory, width)
        for machine, seen in zip(machines[1:], table.hosts, strict=True):
            out.append(_host(seen, table.now, width))
            out += [drawn[f.key] for f in facts[machine.host] if f.key in drawn]
            out += _unseen(table, machine, width)
        return [*out, *(_text(text, style, width) for text, style in table.notes)]

    around = rows({})
    if not every:
        return Built(None, around, _lines(around))
    others_lines = _lines(around) + 1
    wanted = shapes.CARD if len(every) <= shapes.CARD_UP_TO and width >= shapes.CARD_FROM else 1
    each = wanted
    if wanted > 1 and height is not None:  # more where nobody else wants it
        each = min(shapes.TALLEST, (height - others_lines) // len(every))
    carded = each >= shapes.CARD
    drawn = shapes.cards(every, width, each) if carded else shapes.on_one_line(every, width)
    return Built(drawn.header, rows({f.key: Row(f.key, drawn.device(f)) for f in every}),
                 others_lines + wanted * len(every),
                 {f.key: f"{f.name} · {f.mine}{f.use[0]}" for f in every
                  if cells(f.mine + f.use[0]) > drawn.room})


def _machines(table: DeviceTable) -> list[Machine]:
    return [Machine(None, table.inventory, table.snapshot, table.freedom, table.history),
            *of_hosts(table.hosts, table.histories)]


def strip(table: DeviceTable) -> Line:
    """Each device in one cell: a bar of its utilisation, in its run's hue; machines apart."""
    parts: list[Part] = []
    for machine in _machines(table):
        parts += [(" ", "")] if parts and machine.devices else []
        for device in machine.devices:
            ours, sample = (table.ours or {}).get(machine.key(device)), _sample(machine, device)
            share = sample.utilization
            parts.append(("!", "bad") if sample.problem else ("·", "dim") if share is None else
                         (bar(share), graphs.style(share, ours.hue if ours else 0)))
    return tuple(parts)


def _lines(rows: Sequence[Row]) -> int:
    return sum(len(row.lines) for row in rows)


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


def _unseen(table: DeviceTable, machine: Machine, width: int) -> list[Row]:
    """Ticked devices of a host that it does not show, as it was never reached: so that the ticks
    can be taken away."""
    shown = {machine.key(device) for device in machine.devices}
    return [Row(key, (((TICKED, "accent"), (" " + fit(
        f"{clean(row_keys.split(key)[1]) or 'all'}  not seen yet", width - 2).rstrip(), "warn")),))
        for key in table.ticked if row_keys.split(key)[0] == machine.host and key not in shown]


def _indented(text: str, style: str, width: int) -> list[Line]:
    return [(("  " + part, style),) for part in wrap(clean(text), width - 2)]


def _sample(machine: Machine, device: Device) -> Sample:
    found = machine.snapshot.of(device.id) if machine.snapshot is not None else None
    return found or Sample(device)


def _sorted(table: DeviceTable, machine: Machine) -> list[tuple[Device, Sample]]:
    """The devices in the wanted order: equal ones by index, unknown ones last."""
    pairs = [(device, _sample(machine, device)) for device in machine.devices]
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


def _name(device: Device) -> str:
    """The card's name without "NVIDIA". A slice's size comes first: the end may be cut."""
    name = clean(device.name).removeprefix("NVIDIA ")
    card, between, size = name.partition(f" {device.kind.upper()} ")
    return f"{size.partition(' ')[0]} of {card}" if device.is_slice and between else name


def _facts(table: DeviceTable, machine: Machine, device: Device, sample: Sample) -> Facts:
    key = machine.key(device)
    on = key in table.ticked
    box = TICKED if on else UNTICKED if machine.refusal is None else NOT_TO_TICK
    rank, waits = role(table, key), key in table.wanted
    ours = (table.ours or {}).get(key)
    use = _use(table, machine, device, sample)
    return Facts(
        key, (box, "accent" if on else "dim"), numbered(device), _name(device), sample,
        machine.history,
        "".join(f"{part} · " for part in (rank, "notifies when free" if waits else "") if part),
        f"→{rank.replace('rank ', 'r')} " * bool(rank) + "♪ " * waits,
        use, (ours.short, use[1]) if ours and not sample.problem else use,
        ours.hue if ours else 0)


def role(table: DeviceTable, key: str) -> str:
    """The rank of a ticked device, under DataParallel its `cuda:` number; empty: it is alone."""
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
    return [machine.key(device) for machine in _machines(table) for device in machine.devices]


def _use(table: DeviceTable, machine: Machine, device: Device, sample: Sample) -> tuple[str, str]:
    ours = (table.ours or {}).get(machine.key(device))
    freedom = (machine.freedom or {}).get(device.id)
    if sample.problem:
        return "! " + clean(sample.problem), "bad"
    if ours:
        return str(ours), graphs.style(1.0, ours.hue)
    if machine.refusal is not None and freedom is None:
        return "users unknown", "dim"
    if freedom is None or freedom.state == "unknown":
        return (clean(freedom.reason) if freedom else "…"), "dim"
    if freedom.state == "free":
        return clean(freedom.reason), "good" if freedom.reason == "free" else ""
    if freedom.state == "unhealthy":
        return "! " + clean(freedom.reason), "bad"
    return clean(freedom.reason), ""  # somebody's use is no trouble


def short(device: Device) -> str:
    return clean(device.label.partition(" ")[2] if device.is_slice else device.id)


def numbered(device: Device) -> str:
    """The id, and after an arrow its position in an inherited CUDA_VISIBLE_DEVICES: "3→0"."""
    position = "" if device.visible_index is None else f"→{device.visible_index}"
    return short(device) + position


def _text(text: str, style: str, width: int) -> Row:
    return Row("", tuple(((part, style),) for part in wrap(text, width)))


def of_runs(runs: Sequence[RunLine], now: float, hues: Mapping[str, int]) -> dict[str, Ours]:
    """Key of a device's row → the run of ours on it. `now`: Unix seconds. `hues`: by run id."""
    return {device: Ours(run.id, rank, run.name, units.clock(now - run.created), hues[run.id])
            for run in runs for device, rank in run.devices}


def hues(runs: Sequence[RunLine], before: Mapping[str, int]) -> dict[str, int]:
    """The number of a hue, from 1, for each run that is on devices: that which it had `before`, or
    the lowest that no other has."""
    ids = [run.id for run in runs if run.devices]
    found = {run: before[run] for run in ids if run in before}
    free = (n for n in count(1) if n not in found.values())
    return found | {run: next(free) for run in reversed(ids) if run not in found}


def title(name: str, source: DeviceSource, table: DeviceTable) -> str:
    """The pane's title: how many devices are ticked and free, and the order if it is unusual."""
    if source.inventory is None or not (source.inventory.devices or source.hosts):
        return name
    judged = [*(source.freedom or {}).values(),
              *(f for seen in source.hosts for f in seen.freedom.values())]
    counted = f" · {sum(f.free for f in judged)} free" if judged else ""
    order = f" · {ORDERS[table.order]}" if table.order != "index" else ""
    ranks = "" if in_machines_order(table) else " · ranks in your order (r)"
    return f"{name} ─ {len(set(table.ticked))} ticked{counted}{order}{ranks}"


def notes(source: DeviceSource, draft: Draft | None, resolved: bool,
          problems: Sequence[Problem]) -> tuple[tuple[str, str], ...]:
    """Notes and problems, with styles. `resolved`: whether the preset's devices are known."""
    inventory, aside = source.inventory, source.gpus_aside
    asks = "You chose" if draft is not None and draft.ticked_before else "The preset asks for"
    found = [(f"{asks} {name}, which is not here", "warn")
             for name in (draft.absent if draft else ())]
    if source.hosts_problem is not None:
        found.append((f"! {clean(source.hosts_problem)}", "warn"))
    if aside:
        many = f"{aside} GPUs" if aside > 1 else "GPU"
        found.append((f"c shows this machine's {many} again", "dim"))
    if resolved and draft is not None and draft.ticked and draft.missing \
            and inventory is not None:
        there = min(draft.picks or 0, len(inventory.devices))
        if len(draft.ids) < there:
            found.append((_too_few(draft.picks or 0, there, inventory, source.freedom or {}),
                          "warn"))
    if row_keys.ANY in source.wanted:
        found.append(("You will be notified when any device is free (W)", "accent"))
    return (*found, *((f"✗ {p.message}", "bad") for p in problems))


def _too_few(asked: int, there: int, inventory: Inventory, freedom: Mapping[str, Availability]
             ) -> str:
    """Why fewer devices are ticked than the preset asks for: who has the first of the others, and
    what to do."""
    named = {d.id: d.label for d in inventory.devices}
    taken = [f"{named[name]}: {clean(f.reason)}" for name, f in freedom.items()
             if not f.free and name in named]
    free = sum(f.free for f in freedom.values())
    if free >= there or not taken:
        why = "a whole GPU and a MIG slice can't be combined" if free >= there else \
            "it is not known which are free"
        return f"The preset asks for the {asked} freest devices, but {why}; tick others yourself"
    more = f" (and {len(taken) - 1} more)" if len(taken) > 1 else ""
    return f"The preset asks for the {asked} freest devices, and {free or 'none'} of {there} " \
           f"{'are' if free > 1 else 'is'} free; {taken[0]}{more}. Tick others yourself, or Q " \
           "puts the run into the queue"
