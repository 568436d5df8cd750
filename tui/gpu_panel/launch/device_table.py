"""The device table as lines of text: a line for each device, with its last five minutes.

The figures are the columns of `gpu_engine.devices.columns`. Each run of ours has a hue of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.columns import IN_TABLE, TEMPERATURE, Column
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.spec import modes
from gpu_panel.charts.braille import area, level
from gpu_panel.common.palette import HUES
from gpu_panel.common.rows import Line, Part, Row, cells, fit, text_row, wrap
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import SPAN, Machine, clipped

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.remote.reach.watcher import HostSeen
    from gpu_panel.launch.device_source import DeviceSource
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.run_line import RunLine

TICKED, UNTICKED = "▣", "☐"
STALE_AFTER = 3.0
"""Seconds after which the age of figures is shown."""


def keys_of(machines: Sequence[Machine]) -> list[str]:
    """The keys of all devices' rows, machine by machine, in the order of their numbers."""
    return [machine.key(device) for machine in machines for device in machine.devices]


def hue_of(keys: Sequence[str], run: RunLine) -> str:
    """The style of a run of ours, "hue 3", by the place of its first device among all devices'
    rows (`keys`)."""
    places = [keys.index(device) for device, _ in run.devices if device in keys]
    return f"hue {min(places) % HUES}" if places else "accent"


@dataclass(frozen=True, slots=True)
class Ours:
    """A run of ours that is on a device."""

    run: str
    rank: int
    name: str
    since: str
    hue: str = "accent"
    """Its style, from `hue_of`."""

    def __str__(self) -> str:
        return f"● {self.run} rank {self.rank} · {clean(self.name)} · {self.since}"


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
    slurm: str | None = None
    """What is said of Slurm, if it is offered as a place; None: it is not."""

    @property
    def keys(self) -> list[str]:
        """The keys of all devices' rows, machine by machine, in the order of their numbers."""
        return keys_of(self.machines)


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
    tone: str
    """The style of its bars and its history: whose it is."""
    heat: str
    """The style of its temperature, if that is trouble."""

    @property
    def arrow(self) -> str:
        """`role` in a few cells: "→r0 "."""
        return f"→{self.role.replace('rank ', 'r')} " if self.role else ""

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
        return Built(None, [text_row("Looking for devices …", "dim", width)])
    shown = {m.host: [_shown(table, m, d, (m.snapshot and m.snapshot.of(d.id)) or Sample(d))
                      for d in m.devices] for m in table.machines}
    every = [device for devices in shown.values() for device in devices]
    layout = _Layout.of(every, width) if every else None
    free = [_free(m) for m in table.machines]
    most = max(free)
    freest = table.machines[free.index(most)] if most and free.count(most) == 1 else None
    rows = [] if not others else [Row("", ((("this machine", "strong"),
                                            _freedom(here, freest=freest is here)),))]
    for machine in table.machines:
        if machine.seen is not None:
            rows.append(_host(machine.seen, table.now, width,
                              _freedom(machine, freest=freest is machine)))
        rows += [Row(d.key, (layout.line(d, width),)) for d in shown[machine.host] if layout]
        rows += _of_own(here.inventory, width) if machine is here else \
            _unseen(table, machine, width)
    about = {d.key: d.about for d in every}
    if table.slurm is not None:
        on = row_keys.SLURM in table.ticked
        box: Part = (TICKED, "accent") if on else (UNTICKED, "dim")
        rows.append(Row(row_keys.SLURM, ((
            box, (" slurm  ", "strong" * on), (fit(table.slurm, width - 9).rstrip(), "")),)))
        about[row_keys.SLURM] = "how many, nodes and options of sbatch: in the form" if on else \
            "space leaves the devices to Slurm"
    rows += [text_row(text, style, width) for text, style in table.notes]
    return Built(layout.header if layout else None, rows, about)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The cells of each part of a line, with the blanks behind it; 0: no room for it."""

    ids: int
    name: int
    columns: tuple[tuple[Column, int, int], ...]
    """With the cells of the bar and of the figure."""
    who: int
    history: int

    @classmethod
    def of(cls, devices: Sequence[_Shown], width: int) -> _Layout:
        # Keep the columns while a driver fails, so that those beside them don't move.
        failing = any(d.sample.problem and not d.sample.device.is_cpu for d in devices)
        columns = [(c, 2 + max(c.width, *(cells(_figure(c, d.sample)) for d in devices)))
                   for c in IN_TABLE
                   if failing or any(_figure(c, d.sample) not in ("", UNKNOWN) for d in devices)]
        ids = 4 + max(cells(d.number) for d in devices)
        name = 2 + min(26, max(cells(d.name) for d in devices))
        # The least and the wanted cells of each; the most important first. Those of "who" don't
        # depend on what is said there, or all behind it would jump when that changes.
        wants = {c.name: (wide, wide) for c, wide in columns if c.bar}
        wants["who"] = 26, max(26, width // 4)
        wants |= {c.name: (wide, wide) for c, wide in columns}
        wants |= {f"{c.name} bar": (7, width // 9) for c, _ in columns if c.bar}
        wants |= {"name": (name, name), "history": (12, SPAN // 2)}
        left, got = width - ids, dict.fromkeys(wants, 0)
        for part, (least, _) in wants.items():
            if least > left:
                break
            got[part], left = least, left - least
        for part, (_, wanted) in wants.items():
            more = min(left, wanted - got[part]) if got[part] else 0
            got[part], left = got[part] + more, left - more
        got["who"] += left
        return cls(ids, got["name"], tuple((c, got.get(f"{c.name} bar", 0), got[c.name])
                                           for c, _ in columns if got[c.name]),
                   got["who"], got["history"])

    @property
    def header(self) -> Line:
        titles = [fit("  #", self.ids), fit("name", self.name)]
        titles += [fit(c.title, bar + wide) if bar else f"{c.title:>{wide - 2}}  "
                   for c, bar, wide in self.columns]
        return (("".join([*titles, fit("who", self.who), self._minutes]), ""),)

    @property
    def _minutes(self) -> str:
        """The head of the history, with a tick at each minute that there is room for."""
        text = "last 5 min" * bool(self.history)
        for minute in (4, 3, 2, 1):
            at = self.history - self.history * minute // 5
            if len(text) < at < self.history - 1:
                text = f"{text:{at}}┊{minute}"
        return text

    def line(self, device: _Shown, width: int) -> Line:
        sample, history = device.sample, device.machine.history
        number = (fit(f" {device.number}", self.ids - 1), "strong" * (device.box[0] == TICKED))
        role = (device.arrow, "accent")
        if sample.problem:
            room = max(0, width - self.ids - cells(role[0]))
            return device.box, number, role, (fit(device.use[0], room).rstrip(), device.use[1])
        parts: list[Part] = [device.box, number, (fit(device.name, self.name), "")]
        for column, bar, wide in self.columns:
            style = column.style(sample)
            if bar and column.bar:
                filled, rest = level(clipped(column.bar(sample)) or 0.0, bar - 1)
                heat = style or device.heat * (column is IN_TABLE[0])
                parts += [(filled, heat or device.tone), (rest + " ", "track")]
            mark = "!" if style == "bad" and not column.bar else " "
            parts.append((f"{_figure(column, sample):>{wide - 2}}{mark} ", style))
        who = max(0, self.who - cells(role[0]) - 2)
        parts += [role, (fit(device.brief, who), device.use[1]), ("  ", "")]
        if self.history and history is not None:
            parts.append((area(history.utilization(sample.device.id, 2 * self.history))[0],
                          device.tone))
        return tuple(parts)


def _figure(column: Column, sample: Sample) -> str:
    return (column.bare or column.of)(sample)


def _shown(table: DeviceTable, machine: Machine, device: Device, sample: Sample) -> _Shown:
    key = machine.key(device)
    on, ours = key in table.ticked, table.ours.get(key)
    box = TICKED if on else UNTICKED
    use = _use(machine, device, sample, ours)
    idle = "track" if use[1] == "good" else "dim"
    return _Shown(key, (box, "accent" if on else "dim"), numbered(device), _name(device), sample,
                  machine, " ".join(filter(None, (role(table, key), "♪" * (key in table.wanted)))),
                  use, _short(use[0]), ours.hue if ours else idle, TEMPERATURE.style(sample))


def _short(use: str) -> str:
    """The user and the program, without folders: "alice · python train.py"; a run and its name."""
    said = " · ".join(use.split(" · ")[:2])
    return " ".join(word.rpartition("/")[2] for word in said.split(" "))


def _use(machine: Machine, device: Device, sample: Sample, ours: Ours | None) -> Part:
    """Who uses a device, or what is wrong with it."""
    freedom = (machine.freedom or {}).get(device.id)
    if sample.problem:
        return "! " + clean(sample.problem), "bad"
    if ours:
        return str(ours), ours.hue
    if freedom is None:
        return "…", "dim"
    why = clean(freedom.reason)
    idle = machine.history.idle(device.id) if machine.history is not None else None
    if idle is not None and freedom.state == "busy":
        why = f"idle {units.ago(idle).removesuffix(' ago')}: {why}"
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


def _of_own(inventory: Inventory, width: int) -> list[Row]:
    rows: list[Row] = []
    if not inventory.devices:
        rows.append(text_row("No devices. Is the NVIDIA driver loaded (nvidia-smi)?", "warn",
                             width))
    if inventory.problem:
        rows.append(text_row("! " + clean(inventory.problem), "warn", width))
    if inventory.inherited_visible is not None:
        rows.append(text_row(f"{inventory.visible_variable} was set when the panel started: "
                             f"\"{clean(inventory.inherited_visible)}\". Only those GPUs are "
                             "offered; 3→0 means that GPU 3 is the first of them", "dim", width))
    return rows


def _free(machine: Machine) -> int:
    """How many GPUs are free there. CPU slots stand behind any."""
    away = machine.seen is not None and machine.seen.state != "seen"
    states = {} if away else machine.freedom or {}
    return sum(f.free for i, f in states.items() if not i.startswith("cpu:"))


def _freedom(machine: Machine, *, freest: bool) -> Part:
    if not machine.freedom:
        return "", "dim"
    return (f"  {len(machine.usable)} of {len(machine.freedom)} "
            f"{machine.usable_word}" + " · the freest" * freest, "dim")


def _host(seen: HostSeen, now: float, width: int, freedom: Part) -> Row:
    """The line of a host, and below it why it can't be used."""
    parts: list[Part] = [(clean(seen.host.name), "strong")]
    if seen.host.label:
        parts.append((f"  {clean(seen.host.label)}", "dim"))
    if seen.state == "asking":
        parts.append(("  asking …", "dim"))
    else:
        parts.append(freedom)
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
    judged = [machine for machine in table.machines if machine.freedom]
    word = "usable" if any(machine.usable_word == "usable" for machine in judged) else "free"
    counted = f" · {sum(len(machine.usable) for machine in judged)} {word}" if judged else ""
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


def of_runs(runs: Sequence[RunLine], now: float, keys: Sequence[str] = ()) -> dict[str, Ours]:
    """Key of a device's row → the run of ours on it. `now`: Unix seconds; `keys`: of all rows."""
    return {device: Ours(run.id, rank, run.name, units.clock(now - (run.started or run.created)),
                         hue_of(keys, run))
            for run in runs for device, rank in run.devices}
