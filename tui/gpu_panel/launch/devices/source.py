"""The devices for the screen: found once, sampled by a thread, and never waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach.records import LOCAL, Host
from gpu_panel.common.background import in_thread, leave
from gpu_panel.launch.devices import row_keys
from gpu_panel.launch.devices.history import History

if TYPE_CHECKING:
    from gpu_engine.devices.availability import Availability
    from gpu_engine.devices.leases import Holder
    from gpu_engine.devices.records import Device, Inventory, Snapshot
    from gpu_engine.devices.sampler import Sampler
    from gpu_engine.remote.reach.remote_devices import HostSeen
    from gpu_engine.remote.reach.watcher import Watcher

READINGS = 3
"""The number of snapshots by which it is judged whether a device is free."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine (`host` None) or another one, as it was seen last."""

    host: str | None
    inventory: Inventory | None
    snapshot: Snapshot | None
    freedom: Mapping[str, Availability] | None = None
    """Device id → whether it is free, of those that were judged."""
    history: History | None = None
    refusal: str | None = None
    """Why no device of it can be ticked; None if they can."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.inventory.devices if self.inventory is not None else ()

    def find(self, name: str) -> Device | None:
        return self.inventory.find(name) if self.inventory is not None else None

    def key(self, device: Device) -> str:
        return row_keys.of(self.host, device.id)


def of_hosts(hosts: Iterable[HostSeen], histories: Mapping[str, History]) -> list[Machine]:
    return [Machine(s.host.name, s.inventory, s.snapshot, s.freedom, histories.get(s.host.name),
                    None if s.can_run else s.reason or "") for s in hosts]


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
        """Lease key → the run that holds the device, from the last `judge`."""
        self.hues: Mapping[str, int] = MappingProxyType({})
        """Run id → the number of its hue, from 1, for the runs of ours on devices."""
        self.gpus_aside = 0
        """The number of GPUs that are not offered because the CPU slots are offered instead."""
        self._hosts = hosts
        self.histories: dict[str, History] = {}
        self.wanted: set[str] = set()
        """Keys of the rows of devices that the person waits for, or `row_keys.ANY`."""
        self.hosts_problem: str | None = None
        """What is wrong with hosts.toml, so that its hosts are not watched."""

    @property
    def hosts(self) -> tuple[HostSeen, ...]:
        return tuple(self._hosts.seen) if self._hosts is not None else ()

    async def watch_hosts(self, named: Sequence[str] = ()) -> None:
        """Watch the machines in hosts.toml and those that are named."""
        from gpu_engine.remote.reach import file

        try:
            there = await in_thread(file.known)
            self.hosts_problem = None
        except UserError as err:
            there, self.hosts_problem = {}, str(err)
        more = [Host(name) for name in named if name not in there and name != LOCAL]
        for host in (*there.values(), *more):
            if self._hosts is None:
                from gpu_engine.remote.reach.watcher import Watcher

                self._hosts = Watcher()
            self._hosts.watch(host)

    async def find(self) -> Inventory:
        """Find the devices, if that was not done yet, and start to sample them."""
        if self.inventory is None:
            from gpu_engine.devices.discover import discover

            self.inventory = await in_thread(discover)
        if self._sampler is None and not self._given:
            inventory = self.inventory
            self._sampler = await in_thread(lambda: _sampler(inventory, self._interval))
        return self.inventory

    async def offer(self, kind: Literal["gpu", "cpu"]) -> Inventory:
        """Offer the machine's CPU slots in place of its GPUs, or its GPUs again if it has any."""
        if kind == "cpu":
            from gpu_engine.devices.discover import cpu_slots as find
        else:
            from gpu_engine.devices.discover import discover as find

        before = self.inventory
        found = await in_thread(find)
        hidden = kind == "cpu" and before is not None and not before.is_cpu
        self.gpus_aside = len(before.devices) if hidden and before is not None else 0
        if before is not None and found.is_cpu and before.is_cpu:
            return found  # the same slots as before: sampling goes on
        self._let_go()
        self.inventory, self.history, self.freedom = found, History(), None
        self._sampler = await in_thread(lambda: _sampler(found, self._interval))
        return found

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first."""
        return self._sampler.latest if self._sampler is not None else None

    @property
    def machines(self) -> list[Machine]:
        here = Machine(None, self.inventory, self.snapshot, self.freedom, self.history)
        return [here, *of_hosts(self.hosts, self.histories)]

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
            self.histories.setdefault(seen.host.name, History()).learn(seen.recent)

    @property
    def _recent(self) -> tuple[Snapshot, ...]:
        return tuple(self._sampler.recent) if self._sampler is not None else ()

    async def judge(self) -> Mapping[str, Availability]:
        """Judge which devices are free, from the last snapshots and the present leases. Sets
        `freedom` and `holders`. Raises OSError if the leases can't be read."""
        from gpu_engine.devices import availability, leases

        def judged() -> tuple[Mapping[str, Availability], Mapping[str, Holder]]:
            held = leases.holders(paths.leases_folder())
            return availability.judge_all(recent, held) if recent else {}, held

        inventory, recent = self.inventory, self.recent
        freedom, holders = await in_thread(judged)
        if inventory is self.inventory:  # unless other devices are offered by now
            self.freedom, self.holders = freedom, holders
        return freedom

    def age(self) -> float | None:
        """Seconds since the newest snapshot with new figures; None before the first."""
        return self._sampler.age() if self._sampler is not None else None

    def watch_bus(self, *device_ids: str) -> None:
        """Read the bus rates of these GPUs from now on, and of no others."""
        if self._sampler is not None:
            self._sampler.watch_bus(*device_ids)

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


def _sampler(inventory: Inventory, interval: float) -> Sampler:
    from gpu_engine.devices.sampler import Sampler

    sampler = Sampler(inventory, runs_folder=paths.home(), interval=interval)
    sampler.start()
    return sampler
