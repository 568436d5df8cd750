"""The devices pane: the devices, how busy they are, who uses them, and which are ticked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach.hosts import LOCAL
from gpu_engine.spec import modes
from gpu_panel import keys
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard, guarded
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch import device_table, row_keys
from gpu_panel.launch.device_source import READINGS, DeviceSource
from gpu_panel.launch.device_table import STALE_AFTER, DeviceTable

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.devices.records import Inventory
    from gpu_panel.launch.draft import Draft
    from gpu_panel.launch.run_line import RunLine

REMEMBER_EVERY = 30.0
"""Seconds between two readings of the snapshots while another screen is shown."""
MOST_WAITS = 6
"""Snapshots after which the freest devices are chosen even if not all are judged yet. Counted from
the sampler's first one, as a driver that hangs for one GPU may delay that for long."""


class DevicesPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """Shows the devices as `device_table.build` does. Ticks go into the draft."""

    NAME = "devices"
    TITLE = "Devices"
    CALLED = "the devices"
    KEYS = keys.of("devices")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    CHANGES: ClassVar[frozenset[str]] = frozenset({"hold", "release", "usage"})
    HELP = """Tick the devices that the run may use. The bars are now, the last column is the
utilisation of the last five minutes. A run of yours has a colour of its own, others are grey; amber
and red are memory that is nearly full and a card that is hot. "who" says who uses a
device: nobody (free), a run of yours with its rank, or another process; what is said of the one
under the cursor stands whole in the pane's lower edge. ! is trouble. a ticks all free ones. You can
also tick one that isn't free; the panel asks before it launches there. The order of ticking is the
order of the ranks, which are shown with the devices: < and > move one.

A reading is one look at all figures, mostly once a second. A GPU is free if nothing runs on it and
its memory is empty, and it was used less than 10 % in each of the last three readings. A CPU slot
is in use where each of them found it used 90 % or more; it can be ticked all the same.

Where Slurm is installed it has a row: ticked, alone, the run is a job of Slurm, which chooses the
devices. The form says how many, the nodes and options of sbatch; c asks for CPU slots instead.

w notifies you when the device under the cursor is free, W when any is. h holds it without a run,
which r ends; U shows who used which devices for how long."""

    class Edited(Message):
        """The person has changed which devices are ticked in the draft."""

    class Resolved(Message):
        """The devices that the preset asks for have been ticked in the draft."""

    class HeldChanged(Message):
        """The devices that are held by runs, or can't be used, are not the same as before."""

    @dataclass
    class Highlighted(Message):
        device: str | None

    def __init__(self, source: DeviceSource) -> None:
        super().__init__(id=self.NAME)
        self._source = source
        self._draft: Draft | None = None
        self._problems: tuple[Problem, ...] = ()
        self._runs: tuple[RunLine, ...] = ()
        self._table = DeviceTable()
        self._about: Mapping[str, str] = {}
        self.resolved = False
        """Whether the devices that the preset asks for have been looked up here."""
        self._waits = 0
        self._judging = False
        self._held: frozenset[str] = frozenset()
        self.entitle(self.TITLE)

    def on_mount(self) -> None:
        # Also below other screens, which this one's painting waits for: samplers keep two minutes.
        self.set_interval(REMEMBER_EVERY, self._source.remember)

    # --- input from the screen -------------------------------------------------------------------

    def show_draft(self, draft: Draft) -> None:
        """Show and edit another draft. The devices that it asks for are ticked as soon as they are
        known, unless they have been already."""
        self._draft = draft
        self.resolved, self._waits = draft.ids_by_hand, 0
        self.paint()

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Show these, which are about what is ticked."""
        self._problems = tuple(problems)
        self.paint()

    def show_runs(self, runs: Sequence[RunLine]) -> None:
        """Take the runs whose ranks are to be named with their devices from now on."""
        self._runs = tuple(run for run in runs if run.devices)

    @property
    def hues(self) -> Mapping[str, str]:
        """The styles of the runs of ours that are on devices here, by their ids."""
        return {ours.run: ours.hue for ours in self._table.ours.values()}

    # --- painting ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in new snapshots, tick what the preset asks for once it is known, and paint."""
        inventory = self._source.inventory
        self._waits += bool(self._source.recent)
        if inventory is not None and not self.resolved and self._may_resolve(inventory):
            self._resolve()
        self._source.remember()
        self.paint()
        if not self._judging:
            self._judging = True
            self._judge()

    @work(exit_on_error=False, group="freedom")
    async def _judge(self) -> None:
        try:
            with guard(self.app):
                before = self._source.freedom
                if await self._source.judge() != before:
                    self.paint()
                self._tell_if_held_changed()
        finally:
            self._judging = False

    def _tell_if_held_changed(self) -> None:
        """Tell the screen when a run begins or ends or a device is lost, as that changes which
        launches are possible."""
        shot = self._source.snapshot
        held = {k for k, f in (self._source.freedom or {}).items() if f.state == "leased"}
        held |= {f"{s.device.id} lost" for s in (shot.samples if shot else ()) if s.problem}
        if self._draft is not None and self._draft.hosts:
            held |= {f"{s.host.name} {s.state} {s.reason}" for s in self._source.hosts}
        if self._held != held:
            self._held = frozenset(held)
            self.post_message(self.HeldChanged())

    def paint(self) -> None:
        if not self.is_on_screen and self.size.width:
            return
        source, draft = self._source, self._draft
        machines = source.machines
        self._table = DeviceTable(
            machines, self.ticked, draft.mode if draft else "single",
            draft.first_rank if draft else 0,
            device_table.of_runs(self._runs, time.time(), device_table.keys_of(machines)),
            device_table.notes(source, draft, self.resolved, self._problems),
            now=time.monotonic(), wanted=frozenset(source.wanted),
            slurm=None if draft is None or not (source.slurm or draft.on_slurm) else
            f"Slurm chooses the {'CPU slots' if draft.on_slots else 'GPUs'}")
        self.repaint()
        self._entitle()

    def repaint(self) -> None:
        """Take the rows that there are devices for, as far as the style sheet allows."""
        super().repaint()
        place = self.parent
        if isinstance(place, Widget) and (place.styles.height is None
                                          or place.styles.height.value != self.rows_wanted):
            place.styles.height = self.rows_wanted

    def on_show(self) -> None:
        self.paint()

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        built = device_table.build(self._table, width)
        self._about = built.about
        return built.header, built.rows

    @property
    def ticked(self) -> tuple[str, ...]:
        """The keys of the ticked rows, in the order of the ranks."""
        draft, source = self._draft, self._source
        if draft is not None and draft.on_slurm:
            return (row_keys.SLURM,)
        if draft is None or not draft.hosts:
            return tuple(draft.ids) if draft is not None else ()
        inventories = {seen.host.name: seen.inventory for seen in source.hosts}
        return row_keys.of_hosts(draft.hosts, inventories | {LOCAL: source.inventory})

    def _entitle(self) -> None:
        """Below stands what is wrong with the figures, else all about the device at the cursor."""
        source, shot, age = self._source, self._source.snapshot, self._source.age()
        below = clean(shot.problem, 60) if shot is not None and shot.problem else \
            f"seen {age:.0f} s ago" if age is not None and age > STALE_AFTER else \
            self._about.get(self.key_at_cursor or "") or ""
        self.entitle(device_table.title(self.TITLE, source, self._table), below)

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self._entitle()
        self.post_message(self.Highlighted(self.key_at_cursor))

    # --- what the preset asks for --------------------------------------------------------------

    def _may_resolve(self, inventory: Inventory) -> bool:
        """Whether the preset's devices can be ticked yet: the freest need several snapshots."""
        enough = len(self._source.recent) >= READINGS or self._waits > MOST_WAITS
        if self._draft is not None and self._draft.any_of and self._waits <= 2 * MOST_WAITS:
            return enough and self._source.asks_hosts and all(
                m.state == "away" or len(m.recent) >= READINGS for m in self._source.hosts)
        return self._draft is not None and (
            self._draft.picks is None or inventory.is_cpu or enough)

    @guarded("resolve", exclusive=True)
    async def _resolve(self) -> None:
        self.resolved = True
        source, draft = self._source, self._draft
        if draft is None:
            return
        inventory = source.inventory
        slots = [i.startswith("cpu:") for i in draft.ids]
        if slots and inventory is not None and not draft.ids_by_hand:
            if all(slots) and not inventory.is_cpu:
                inventory = await source.offer("cpu")
            elif not any(slots) and source.gpus_aside:
                inventory = await source.offer("gpu")
        await source.judge()
        if draft.any_of and not draft.ids_by_hand:
            try:
                chosen = await in_thread(lambda: source.choose(draft.wanted))
            except UserError as err:
                self.notify(str(err), title="No machine can take it now", severity="warning",
                            markup=False)
                chosen = None
            draft.choose(chosen)
            self.paint()
            self.post_message(self.Resolved())
            return
        if draft is self._draft and inventory is not None and not draft.ids_by_hand:
            draft.resolve(inventory, source.recent, source.holders)
            self.paint()
            self.post_message(self.Resolved())

    # --- what the person ticks -----------------------------------------------------------------

    def tick(self, ids: Sequence[str]) -> None:
        """Tick exactly these devices, in the order of the ranks, as the person's own choice. Slurm
        is alone: of it and devices, what was ticked last stays."""
        if self._draft is None:  # no preset has been read yet
            return
        self.resolved = True
        before = self._draft.mode
        if list(ids[-1:]) == [row_keys.SLURM]:
            self._draft.tick_slurm()
        else:
            ids = [key for key in ids if key != row_keys.SLURM]
            self._draft.tick(ids, row_keys.entries(ids))
        mode = modes.find(self._draft.mode)
        if mode is not None and mode.name != before:
            self.notify(f"{units.counted(len(ids), 'device')}: {mode.short}", markup=False)
        self.paint()
        self.post_message(self.Edited())

    def action_tick(self) -> None:
        if self.key_at_cursor is not None:
            self._toggle(self.key_at_cursor)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self._toggle(event.key)

    def _toggle(self, key: str) -> None:
        rest = [k for k in self.ticked if k != key]
        self.tick(rest if key in self.ticked else [*rest, key])

    @property
    def _host(self) -> str | None:
        """The machine under the cursor; None: this one."""
        return row_keys.split(self.key_at_cursor or "")[0]

    def _at_slurm(self) -> bool:
        """Whether the cursor is on Slurm's row, which has no devices; then says so."""
        there = self.key_at_cursor == row_keys.SLURM
        if there:
            self.notify("Slurm chooses the devices; the form says how many", title="Slurm")
        return there

    def action_tick_all(self) -> None:
        """All free ones of the machine under the cursor; where these are ticked already, none."""
        if self._at_slurm():
            return
        host, ticked = self._host, self.ticked
        machine = self._source.machine(host)
        usable = [key for name in (machine.usable if machine is not None else ())
                  if (key := row_keys.of(host, name)) in self._table.keys]
        more = [key for key in usable if key not in ticked]
        here = [key for key in ticked if row_keys.split(key)[0] == host]
        if not more and not set(usable) & set(here):
            self.notify("No device here is free; space ticks one all the same", severity="warning")
            return
        self.tick([*ticked, *more] if more else [key for key in ticked if key not in here])

    @guarded("free", exclusive=True)
    async def action_tick_free(self) -> None:
        if self._at_slurm():
            return
        count = max(1, len(set(self.ticked)))
        chosen = await self._source.freest_of(self._host, count)
        if chosen is None:
            return
        if len(chosen) < count:
            self.notify(f"Only {len(chosen)} of {count} can be used now", title="Freest devices",
                        severity="warning", markup=False)
        self.tick(chosen)

    def action_move_rank(self, by: int) -> None:
        """Swap the rank under the cursor with its neighbour."""
        if self._at_slurm():
            return
        order, key = list(self.ticked), self.key_at_cursor
        if key in order and 0 <= (at := order.index(key)) + by < len(order):
            order[at], order[at + by] = order[at + by], order[at]
            self.tick(order)

    # --- waiting for a device ------------------------------------------------------------------

    def action_wait(self) -> None:
        if (key := self.key_at_cursor) is not None and not self._at_slurm():
            self._wait_for(key, [key])

    def action_wait_any(self) -> None:
        self._wait_for(row_keys.ANY, self._table.keys)

    def _wait_for(self, key: str, those: Sequence[str]) -> None:
        """Wait for `key`, unless one of `those` devices is free now."""
        free = [device for device in those if self._source.state_of(device) == "free"]
        if key not in self._source.wanted and free:
            self.notify(f"{free[0]} is free now", title="Free", markup=False)
            return
        self._source.wanted ^= {key}
        self.paint()

    # --- a device without a run, and who had them ----------------------------------------------

    @property
    def _typed(self) -> str:
        """The device under the cursor as a command takes it: "0", or "gpu1:0"."""
        host, name = row_keys.split(self.key_at_cursor or "")
        return name if host is None else f"{host}:{name}"

    @guarded("hold", exclusive=True)
    async def action_hold(self) -> None:
        from gpu_panel.commands.own import engine
        from gpu_panel.common.dialogs import AskLine

        if not (device := self._typed) or self._at_slurm():
            return
        typed = await self.app.push_screen_wait(AskLine(
            f"Hold {device}", "4h", "For how long (90m, 4h, 2d) and, behind it, what for: others "
            "see that beside the device. r ends it.", longest=200, does="hold"))
        if typed:
            span, _, why = typed.partition(" ")
            engine(self.app, "hold", "--devices", device, "--for", span, "--why", why.strip())

    def action_release(self) -> None:
        from gpu_panel.commands.own import engine

        if (device := self._typed) and not self._at_slurm():
            engine(self.app, "release", device)

    def action_usage(self) -> None:
        from gpu_panel.commands.own import engine

        engine(self.app, "usage")

    # --- what is offered, and how it is shown --------------------------------------------------

    @guarded("free", exclusive=True)
    async def action_other_kind(self) -> None:
        before, draft = self._source.inventory, self._draft
        if before is None or draft is None:
            return
        if draft.on_slurm:
            draft.other_kind_on_slurm()
            self.paint()
            self.post_message(self.Edited())
            return
        found = await self._source.offer("gpu" if before.is_cpu else "cpu")
        if found.source == before.source:
            self.notify(found.problem or "No GPU was found on this machine",
                        title="CPU slots", markup=False)
            return
        if draft.picks and not draft.ids_by_hand:
            self.resolved, self._waits = False, 0  # ticks as many of the freest of the other kind
            draft.devices["ids"] = []
            self.paint()
            return
        # As many of the other kind.
        count = max(1, len(draft.ids))
        self.tick(await self._source.freest_of(None, count)
                  or [device.id for device in found.devices[:count]])
