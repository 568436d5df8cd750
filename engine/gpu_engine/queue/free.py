"""The devices of this machine as a waiting run sees them: which there are, and which are free.

What the leases tell costs nothing. The driver is read only while asked to, as a reading keeps a
process of its own: see `discover.readings`.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpu_engine.common.errors import UserError
from gpu_engine.devices import availability, leases, probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.discover import cpu_slots, discover, readings
from gpu_engine.devices.records import Inventory, Sample, Snapshot
from gpu_engine.queue.turns import DeviceNow
from gpu_engine.runs.waiting import Entry
from gpu_engine.supervisor.supervise import STOPS

READING = 0.5
"""Seconds between two readings of devices of which one may become free."""
_TIMEOUT = 30.0
"""Seconds that the driver has to answer."""
FIND_AGAIN = 60.0
"""Seconds after which devices are searched for again where the run waits for one that is not there,
as soon after a reboot."""


class Devices:
    """The devices that one run may get."""

    def __init__(self) -> None:
        self.inventory: Inventory | None = None
        self._searched = -math.inf
        self._readings: Iterator[tuple[Sample, ...]] | None = None
        self._recent: tuple[Snapshot, ...] = ()

    @property
    def reading(self) -> bool:
        """Whether the driver is being read, which waits by itself."""
        return self._readings is not None

    def find(self, entry: Entry) -> Inventory:
        """All devices of the kind that the run waits for, also those that this process's
        environment hides: other runs wait for them, and may have come first."""
        known, now = self.inventory, time.monotonic()
        lacks = known is None or not known.devices or any(
            known.find(i) is None for i in (*entry.ids, *entry.within))
        if known is not None and not (lacks and now - self._searched > FIND_AGAIN):
            return known
        self._searched = now
        found = cpu_slots() if entry.cpu else all_gpus()
        probe.drop()
        if found != known:
            self.stop_reading()
        self.inventory = found
        return found

    def read(self) -> None:
        """Wait for the driver's next reading. Raises NoAnswer."""
        assert self.inventory is not None
        if self._readings is None:
            self._readings = readings(
                self.inventory.source, self.inventory.devices, _TIMEOUT,
                lambda: bool(signal.sigpending() & STOPS), READING)
        samples = next(self._readings, None)
        if samples is None:
            self._readings = None
        else:
            self._recent = (*self._recent,
                            Snapshot(time.time(), samples))[-availability.READINGS:]

    def stop_reading(self) -> None:
        """Let the driver alone, and forget what it said."""
        close = getattr(self._readings, "close", None)
        self._readings, self._recent = None, ()
        if close is not None:
            close()

    def now(self, holders: Mapping[str, leases.Holder], *, read: bool) -> dict[str, DeviceNow]:
        """The devices as they are now. Not `read`: as far as the leases tell, which for CPU slots
        is all: on a busy machine a run would wait for ever."""
        assert self.inventory is not None
        states = availability.judge_all(self._recent, holders) if read and self._recent else {}
        found = {}
        for device in self.inventory.devices:
            sample = self._recent[-1].of(device.id) if read and self._recent else None
            holder, judged = holders.get(leases.key(device)), states.get(device.id)
            if holder is not None:
                why = f"is held by {holder}"
            elif not read or (judged is not None and judged.free):
                why = ""
            else:
                why = f"is not free: {judged.reason}" if judged is not None else "is being read"
            found[device.id] = DeviceNow(
                device.id, device.label, not why, why,
                usable=device.is_cpu or not read or (sample is not None and sample.problem is None),
                memory=device.memory_total if not read else
                None if sample is None else availability.free_memory(sample),
                total=device.memory_total, cpu=device.is_cpu)
        return found

    def choose(self, count: int, ids: Sequence[str]) -> Sequence[str] | None:
        """The best `count` of these devices, which are free or may be shared; None if they do not
        go together, as a GPU and a slice."""
        if not self._recent:
            return ids[:count]
        newest = self._recent[-1]
        samples = tuple(replace(s, processes=()) for s in newest.samples if s.device.id in ids)
        try:
            chosen = availability.freest(count, [replace(newest, samples=samples)], {}, readings=1)
        except UserError:  # shared ones that are not free: those with the most memory left
            able = availability.unmixed([s for s in newest.samples if s.device.id in ids], count)
            able = sorted(able, key=lambda s: -(availability.free_memory(s) or 0))[:count]
            return [s.device.id for s in able] if len(able) == count else None
        return [d.id for d in chosen]


def all_gpus() -> Inventory:
    """All GPUs of this machine, whatever the environment hides."""
    hidden = {variable: os.environ.pop(variable) for name in registry.BACKENDS
              for variable in registry.load(name).variables if variable in os.environ}
    try:
        return discover()
    finally:
        os.environ.update(hidden)
