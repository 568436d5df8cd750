"""The devices for the screen: found once, sampled by a thread, and never waited for; and what they
did in the last five minutes."""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.devices.columns import memory_share
from gpu_engine.devices.records import Device, Inventory, Snapshot
from gpu_engine.remote.reach.hosts import LOCAL, Host
from gpu_panel.common.background import in_thread, leave
from gpu_panel.launch import row_keys

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_engine.devices.sampler import Sampler
    from gpu_engine.devices.use_log import Others
    from gpu_engine.remote.reach.hosts import HostDevices
    from gpu_engine.remote.reach.watcher import HostSeen, Watcher
    from gpu_engine.spec.schema import RunSpec

READINGS = 3
"""The number of snapshots by which it is judged whether a device is free."""
SPAN = 300
"""Seconds of a device's history, one value for each."""
IDLE = 1800
"""Seconds after which a device whose memory is held at 0 % is called idle."""
BRIDGED = 15
"""Seconds between two snapshots over which the earlier value is taken to hold, as hosts and slow
settings are read less often than once a second. Longer ones are gaps."""


class History:
    """Utilisation and memory of each device, as shares from 0 to 1, over the last five minutes."""

    def __init__(self) -> None:
        self._until = 0
        """The newest snapshot's Unix second, by the clock of its machine."""
        self._newest: Snapshot | None = None
        self._kept: dict[str, deque[tuple[int, float | None, float | None]]] = {}
        """Device id → second, utilisation, memory."""
        self._idle: dict[str, int] = {}
        """Device id → the second since which its memory is held and it computes nothing."""

    def learn(self, recent: Sequence[Snapshot]) -> None:
        """Take in those of the snapshots (oldest first) that are new."""
        from gpu_engine.devices.availability import MEMORY  # after the first frame

        known = next((i for i, shot in enumerate(recent) if shot is self._newest), -1)
        for shot in recent[known + 1:]:
            self._newest, at = shot, int(shot.taken)
            if at <= self._until - SPAN:  # the clock was set back
                self._kept.clear()
                self._idle.clear()
            elif at < self._until:
                continue
            self._until = at
            for sample in shot.samples:
                kept = self._kept.setdefault(sample.device.id, deque(maxlen=SPAN))
                if kept and kept[-1][0] == at:
                    kept.pop()
                kept.append((at, clipped(sample.utilization), clipped(memory_share(sample))))
                if sample.utilization == 0 and (sample.memory_used or 0) >= MEMORY \
                        and not sample.device.is_cpu:
                    self._idle.setdefault(sample.device.id, at)
                else:
                    self._idle.pop(sample.device.id, None)

    def idle(self, device_id: str) -> int | None:
        """Seconds for which a device has computed nothing although its memory is held, as far as
        was seen here; None: for less than half an hour."""
        seconds = self._until - self._idle.get(device_id, self._until)
        return seconds if seconds >= IDLE else None

    def utilization(self, device_id: str, width: int) -> list[float | None]:
        """The means of a device's utilisation in at most `width` parts, the newest last. None: not
        known."""
        return self._cells(device_id, 1, width)

    def memory(self, device_id: str, width: int) -> list[float | None]:
        """The means of the share of its memory that is used, likewise."""
        return self._cells(device_id, 2, width)

    def _cells(self, device_id: str, which: int, width: int) -> list[float | None]:
        cells = min(width, SPAN)
        first = self._until * cells // SPAN + 1 - cells
        """Number of the first cell, from the epoch: a value stays in its cell until the graph moves
        on."""
        found: list[list[float]] = [[] for _ in range(cells)]
        before, cell, value = None, 0, None
        for second in self._kept.get(device_id, ()):
            at, last = second[0], cell
            cell = at * cells // SPAN - first
            if before is not None and at - before <= BRIDGED and value is not None:
                for between in range(max(0, last + 1), cell):
                    found[between].append(value)
            before, value = at, second[which]
            if value is not None and cell >= 0:
                found[cell].append(value)
        return [sum(values) / len(values) if values else None for values in found]


def clipped(value: float | None) -> float | None:
    return min(1.0, max(0.0, value)) if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine (`host` None) or another one, as it was seen last."""

    host: str | None = None
    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    freedom: Mapping[str, Availability] | None = None
    """Device id → whether it is free, of those that were judged."""
    history: History | None = None
    seen: HostSeen | None = None
    """What is known of another machine."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.inventory.devices if self.inventory is not None else ()

    @property
    def usable(self) -> list[str]:
        """The ids of those that a run may take now."""
        from gpu_engine.devices import availability

        return availability.usable(self.freedom or {})

    @property
    def usable_word(self) -> str:
        """What these are in one word."""
        from gpu_engine.devices import availability

        return availability.usable_word(self.freedom or {})

    def find(self, name: str) -> Device | None:
        return self.inventory.find(name) if self.inventory is not None else None

    def key(self, device: Device) -> str:
        return row_keys.of(self.host, device.id)


class DeviceSource:
    """The devices of this machine and of others, their snapshots, and which of them are free."""

    def __init__(self, inventory: Inventory | None = None, sampler: Sampler | None = None,
                 hosts: Watcher | None = None, interval: float = 1.0) -> None:
        """`inventory`, `sampler`, `hosts`: in place of the machine's own. `interval`: seconds."""
        self._interval = interval
        self.inventory = inventory
        self._sampler = sampler
        self._given = sampler is not None
        self.history = History()
        self.freedom: Mapping[str, Availability] | None = None
        """Device id → whether it is free, from the last `judge`; None before the first."""
        self.holders: Mapping[str, Holder] = MappingProxyType({})
        self._others: Others | None = None
        """Lease key → the run that holds the device, from the last `judge`."""
        self.gpus_aside = 0
        """The number of GPUs that are not offered because the CPU slots are offered instead."""
        self._hosts = hosts
        self._histories: dict[str, History] = {}
        self.wanted: set[str] = set()
        """Keys of the rows of devices that the person waits for, or `row_keys.ANY`."""
        self.asks_hosts = False
        """Whether the machines in hosts.toml are watched, if there are any."""
        self.hosts_problem: str | None = None
        """What is wrong with hosts.toml, so that its hosts are not watched."""
        self.slurm = False
        """Whether runs can be submitted to Slurm here."""

    @property
    def hosts(self) -> tuple[HostSeen, ...]:
        return tuple(self._hosts.seen) if self._hosts is not None else ()

    async def watch_hosts(self, named: Sequence[str] = ()) -> None:
        """Watch the machines in hosts.toml and those that are named."""
        from gpu_engine.remote.reach import hosts

        def read() -> dict[str, Host]:
            if shutil.which("sbatch") is not None:
                from gpu_engine.slurm.submit import can_be_asked

                self.slurm = can_be_asked()
            return hosts.read()

        try:
            there = await in_thread(read)
            self.hosts_problem = None
        except UserError as err:
            there, self.hosts_problem = {}, str(err)
        more = [Host(name) for name in named if name not in there and name != LOCAL]
        for host in (*there.values(), *more):
            if self._hosts is None:
                from gpu_engine.remote.reach.watcher import Watcher

                self._hosts = Watcher()
            self._hosts.watch(host)
        self.asks_hosts = True

    async def find(self) -> Inventory:
        """Find the devices, if that was not done yet, and start to sample them."""
        if self.inventory is None:
            from gpu_engine.devices.discover import discover

            self.inventory = await in_thread(discover)
        if self._sampler is None and not self._given:
            await self._sample(self.inventory)
        return self.inventory

    async def _sample(self, inventory: Inventory) -> None:
        from gpu_engine.devices.sampler import Sampler

        def started() -> Sampler:
            sampler = Sampler(inventory, runs_folder=paths.home(), interval=self._interval)
            sampler.start()
            return sampler

        self._sampler = await in_thread(started)

    async def offer(self, kind: Literal["gpu", "cpu"]) -> Inventory:
        """Offer the machine's CPU slots in place of its GPUs, or its GPUs again if it has any."""
        from gpu_engine.devices.discover import cpu_slots, discover

        before = self.inventory
        found = await in_thread(cpu_slots if kind == "cpu" else discover)
        hidden = kind == "cpu" and before is not None and not before.is_cpu
        self.gpus_aside = len(before.devices) if hidden and before is not None else 0
        if before is not None and found.is_cpu and before.is_cpu:
            return found  # the same slots as before: sampling goes on
        self._let_go()
        self.inventory, self.history, self.freedom = found, History(), None
        await self._sample(found)
        return found

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first."""
        return self._sampler.latest if self._sampler is not None else None

    @property
    def machines(self) -> list[Machine]:
        """This machine, then the others."""
        return [Machine(None, self.inventory, self.snapshot, self.freedom, self.history),
                *(Machine(s.host.name, s.inventory, s.snapshot, s.freedom,
                          self._histories.get(s.host.name), s) for s in self.hosts)]

    def machine(self, host: str | None) -> Machine | None:
        """The one of this name; with `host` None, this one."""
        return next((m for m in self.machines if m.host == host), None)

    def state_of(self, key: str) -> str:
        """A device's state when last judged, as `availability` calls it, by the key of its row."""
        host, name = row_keys.split(key)
        machine = self.machine(host)
        judged = (machine.freedom if machine is not None else None) or {}
        return judged[name].state if name in judged else "unknown"

    @property
    def recent(self) -> tuple[Snapshot, ...]:
        """The last few snapshots, oldest first, by which devices are judged."""
        recent = self._recent
        latest = self.snapshot  # read after `recent`, so that it is not older
        if latest is not None and (not recent or latest is not recent[-1]):
            recent += (latest,)  # a snapshot without new figures says what is wrong
        return recent[-READINGS:]

    def remember(self) -> None:
        self.history.learn(self._recent)
        for seen in self.hosts:
            self._histories.setdefault(seen.host.name, History()).learn(seen.recent)

    @property
    def _recent(self) -> tuple[Snapshot, ...]:
        return tuple(self._sampler.recent) if self._sampler is not None else ()

    async def judge(self) -> Mapping[str, Availability]:
        """Judge which devices are free, from the last snapshots and the present leases. Sets
        `freedom` and `holders`. Raises OSError if the leases can't be read."""
        from gpu_engine.devices import availability, leases, use_log

        others = self._others = self._others or use_log.Others()

        def judged() -> tuple[Mapping[str, Availability], Mapping[str, Holder]]:
            if recent:
                others.note(recent[-1])
            held = leases.holders(paths.leases_folder())
            return availability.judge_all(recent, held) if recent else {}, held

        inventory, recent = self.inventory, self.recent
        freedom, holders = await in_thread(judged)
        if inventory is self.inventory:  # unless other devices are offered by now
            self.freedom, self.holders = freedom, holders
        return freedom

    async def freest_of(self, host: str | None, count: int) -> list[str] | None:
        """Keys of the freest devices of a machine, at most `count`; None: not known yet. Raises
        OSError."""
        if host is None:
            await self.judge()
            return None if self.inventory is None else [
                d.id for d in freest(count, self.inventory, self.recent, self.holders)]
        machine = self.machine(host)
        able = [] if machine is None else machine.usable
        return [row_keys.of(host, name) for name in able][:count]

    def choose(self, spec: RunSpec) -> HostDevices:
        """Devices of the freest of the machines that `spec` leaves open, by what is known of them.
        Raises UserError, TooFew."""
        from gpu_engine.remote.reach.watcher import HostSeen
        from gpu_engine.remote.run import freest

        here = HostSeen(Host(LOCAL), "seen", self.inventory, self.snapshot, self.recent,
                        self.freedom or {})
        spec, meant = freest.asked_of(spec)
        names = {host.name for host in meant}
        seen = [m for m in (*self.hosts, here) if m.host.name in names]
        return freest.choose(seen, spec, cpu=freest.on_cpu(seen)).where[0]

    def age(self) -> float | None:
        """Seconds since the newest snapshot with new figures; None before the first."""
        return self._sampler.age() if self._sampler is not None else None

    def close(self) -> None:
        """Let go of the sampler and the hosts; a driver call that hangs is left behind, and so is
        a connection that does not end."""
        self._let_go()
        if self._hosts is not None:
            leave(self._hosts.close)
            self._hosts = None

    def _let_go(self) -> None:
        if self._sampler is not None:
            leave(self._sampler.close)
            self._sampler = None


def freest(count: int, inventory: Inventory, snapshots: Sequence[Snapshot],
           leases: Mapping[str, Holder]) -> list[Device]:
    """The freest devices, at most `count`; fewer if fewer may be used.

    Devices that have not been sampled long enough to be called free are included, as the person
    sees the ticks before anything is started. Devices whose state is unknown for another reason are
    not.
    """
    from gpu_engine.devices import availability as free

    snapshots = [shot for shot in snapshots if shot.samples]  # a reading that failed has none
    if not snapshots and inventory.is_cpu:
        return list(inventory.devices[:count])
    count = min(count, len(inventory.devices))
    try:
        return free.freest(count, snapshots, leases)
    except UserError:
        states = free.judge_all(snapshots, leases)
        enough = max(1, min(len(snapshots), free.READINGS))
        so_far = free.judge_all(snapshots, leases, readings=enough)
        newest = [s for s in snapshots[-1].samples if s.device.id in so_far] if snapshots else []
        able = free.unmixed([s for s in newest if so_far[s.device.id].free or (
            s.device.is_cpu and so_far[s.device.id].state == "busy")], count)
        able.sort(key=lambda s: not states[s.device.id].free)
        chosen = {s.device.id for s in able[:count]}
        return [d for d in inventory.devices if d.id in chosen]
