"""The devices of this machine as the waiting runs see them, looked at no more often than needed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.devices import availability, leases
from gpu_engine.devices.backends import registry
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Inventory, Sample, Snapshot
from gpu_engine.devices.sampler import Sampler
from gpu_engine.queue.order import DeviceNow

INTERVAL = 0.3
"""Seconds between two readings of devices of which one may become free: three of them and the start
of the run fit into two seconds."""
_SLOWER = 1.0
"""The same while other people's processes are on them, which may take days: each look costs."""
_FIND_AGAIN = 60.0
"""Seconds after which devices are searched for again where a run waits for one that is not there.
"""


class Devices:
    """Reads the devices of one kind: the machine's GPUs, or its CPU slots."""

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu
        self._inventory: Inventory | None = None
        self._found = 0.0
        self._sampler: Sampler | None = None
        self._since: dict[str, float] = {}
        """Device → since when it has been free, monotonic seconds."""
        self._recent: tuple[Snapshot, ...] = ()
        self._held: frozenset[str] = frozenset()
        """The leases that were held at the last look: a device that a run has just let go of is
        looked at more often."""
        self._interval = INTERVAL

    def id_of(self, name: str) -> str:
        """The id of the device with this UUID or id; `name` itself if there is none now."""
        device = self._devices((name,)).find(name)
        return name if device is None else device.id

    def now(self, starting: Mapping[str, str], wanted: Collection[str] | None,
             shared: bool = False) -> dict[str, DeviceNow]:
        """The devices as they are now. `starting`: device → the run of ours that is about to take
        it. `wanted`: the ids that runs wait for, None: all; only these are read from the driver,
        and only while no other run of gpu-panel holds them, unless a run would share them
        (`shared`). A CPU slot is free if none does: on a busy machine a run would wait for ever."""
        inventory = self._devices(wanted)
        held = leases.holders(paths.leases_folder())
        open_ones = [d for d in inventory.devices if (shared or leases.key(d) not in held)
                     and d.id not in starting and (wanted is None or d.id in wanted)]
        self._interval = INTERVAL if any(leases.key(d) in self._held for d in open_ones) \
            else _SLOWER
        self._held = frozenset(held)
        self._read(bool(open_ones) and not self.cpu)
        states = availability.judge_all(self._recent, held) if self._recent else {}
        newest = self._recent[-1] if self._recent else None
        now, found = time.monotonic(), {}
        for device in inventory.devices:
            sample = newest.of(device.id) if newest is not None else None
            holder = held.get(leases.key(device))
            if device.id in starting:
                why = f"run {starting[device.id]} starts on"
            elif holder is not None:
                why = f"is held by {holder}"
            elif self.cpu or (device.id in states and states[device.id].free):
                why = ""
            else:
                why = f"is not free: {states[device.id].reason}" if device.id in states \
                    else "is being read"
            if why:
                self._since.pop(device.id, None)
            else:
                self._since.setdefault(device.id, now)
            found[device.id] = DeviceNow(
                device.id, device.label, not why, why, usable=self.cpu or _usable(sample),
                memory=_free(sample), total=device.memory_total,
                since=self._since.get(device.id), cpu=device.is_cpu)
        return found

    def keys(self) -> dict[str, str]:
        """Device → the key of its lease."""
        return {d.id: leases.key(d) for d in self._devices(None).devices}

    def choose(self, count: int, ids: Sequence[str]) -> Sequence[str] | None:
        """The best `count` of these devices, which are free or may be shared; None if they do not
        go together, as a GPU and a slice."""
        if self.cpu:
            return ids[:count]
        if not self._recent:
            return None
        newest = self._recent[-1]
        samples = tuple(replace(s, processes=()) for s in newest.samples if s.device.id in ids)
        try:
            chosen = availability.freest(count, [replace(newest, samples=samples)], {}, readings=1)
        except UserError:  # shared ones that are not free: those with the most memory left
            able = availability.unmixed([s for s in newest.samples if s.device.id in ids], count)
            able = sorted(able, key=lambda s: -(_free(s) or 0))[:count]
            return [s.device.id for s in able] if len(able) == count else None
        return [d.id for d in chosen]

    def close(self) -> None:
        """Stop reading."""
        self._read(wanted=False)

    def _devices(self, wanted: Collection[str] | None) -> Inventory:
        now = time.monotonic()
        known = self._inventory
        missing = known is not None and (
            not known.devices or any(known.find(i) is None for i in wanted or ()))
        if known is None or (missing and now - self._found > _FIND_AGAIN):
            found = cpu_slots() if self.cpu else _all_gpus()
            self._found = time.monotonic()
            if found != known:  # else what is read goes on: for how long a device was free counts
                self.close()
                self._inventory = found
            return found
        return known

    def _read(self, wanted: bool) -> None:
        """Read the devices from now on, or no longer."""
        if not wanted:
            if self._sampler is not None:
                self._sampler.close()
            self._sampler, self._recent = None, ()
            return
        if self._sampler is None and self._inventory is not None:
            self._sampler = Sampler(self._inventory, interval=self._interval)
            self._sampler.start()
        if self._sampler is not None:
            latest = self._sampler.latest
            self._recent = self._sampler.recent[-availability.READINGS:]
            if latest is not None and latest.problem is not None:
                self._recent = (latest,)  # the driver does not answer: nothing is free


def _all_gpus() -> Inventory:
    """All GPUs of this machine. What the environment of the first waiting run hides is not hidden
    from the others."""
    for name in registry.BACKENDS:
        for variable in registry.load(name).variables:
            os.environ.pop(variable, None)
    return discover()


def _usable(sample: Sample | None) -> bool:
    return sample is not None and sample.problem is None


def _free(sample: Sample | None) -> int | None:
    return None if sample is None else availability.free_memory(sample)
