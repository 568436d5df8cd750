"""The figures of a run's devices, written to `devices.jsonl` while its ranks run.

The supervisor has one thread and may not wait: the probe's process reads the GPUs, and what it has
sent is fetched at each look. Whatever goes wrong here is logged once and harms no run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from gpu_engine.common import procs
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Device, Inventory, Sample
from gpu_engine.events import notices, schema
from gpu_engine.events.paths import DEVICES, NODES
from gpu_engine.events.writer import EventWriter, encode
from gpu_engine.runs.folder import Run

if TYPE_CHECKING:
    from gpu_engine.devices.probe import Probe

EVERY = 5.0
"""Seconds between two readings: reading eight GPUs takes about 10 ms. A line has about 250 bytes,
4 MB a day."""
PATIENCE = 30.0
"""Seconds after which a device that does not answer counts as late."""

log = logging.getLogger(__name__)
_V = TypeVar("_V")


class DeviceRecord:
    """Records `devices`, which the backend `source` has found, during one attempt. The first
    reading comes after `every` seconds, when the ranks have started."""

    def __init__(self, run: Run, source: str, devices: Sequence[Device], every: float = EVERY,
                 ) -> None:
        self._run, self._source, self._devices = run, source, tuple(devices)
        self._every, self._due = every, time.monotonic() + every
        self._probe: Probe | None = None
        self._asked = False
        """Whether a reading was asked for and has not come yet."""
        self._told = False
        """Whether it was told that the run computes on other devices."""
        self._readers: Sequence[registry.Reader] | None = None
        self._writer: EventWriter | None = None
        self._newest = 0.0
        """The monotonic time of the reading that was written last."""
        self._over = not self._devices
        self.found: tuple[Device, ...] = self._devices if source == "cpu" else ()
        """All devices of the machine; none as long as they are not known."""
        self.seen: tuple[Sample, ...] = ()
        """The newest reading of all of them; of CPU slots there is none."""

    @property
    def pid(self) -> int | None:
        """The process that reads the GPUs, which is below this one and none of the run's."""
        return None if self._probe is None else self._probe.pid

    def sample(self) -> schema.Warning | None:
        """Write what is new. Returns, once, that the run computes on devices that it does not hold.
        Never waits, never raises."""
        if self._over or time.monotonic() < self._due:
            return None
        try:
            return self._record()
        except Exception as err:  # noqa: BLE001  recording must not end a run
            log.info("the devices' figures are no longer recorded: %s", err)
            self.close()
            return None

    def close(self) -> None:
        """End the recording, before everything below the supervisor is killed."""
        self._over = True
        if self._probe is not None:
            self._probe.close()
        if self._writer is not None:
            self._writer.close()
        self._probe = self._writer = None

    def _record(self) -> schema.Warning | None:
        backend = registry.load(self._source)
        if not backend.asks_driver:
            if self._readers is None:  # the first reading has nothing to compare with
                self._readers = backend.open(self._devices)
            else:
                self._write([s for reader in self._readers for s in reader.read()])
            self._due = time.monotonic() + self._every
            return None
        from gpu_engine.devices import probe

        if self._probe is None:
            self._probe = probe.Probe()
            # Also those that the run does not hold: a script may choose its devices by itself.
            self._probe.send(probe.Discover(self._source, {}, PATIENCE))
            self._asked = True
        elif not self._asked:
            self._probe.send(probe.Look())
            self._asked = True
        reply = self._probe.receive(0.0)
        if isinstance(reply, Inventory):
            own = {device.id for device in self._devices}
            others = [device for device in reply.devices if device.id not in own]
            self.found = (*self._devices, *others)
            self._probe.send(probe.Watch(self._source, (*self._devices, *others), PATIENCE))
            self._asked = False
        elif reply is not None:
            self._asked, self._due = False, time.monotonic() + self._every
            if reply.at > self._newest:
                self._newest, self.seen = reply.at, reply.samples
                self._write(reply.samples[:len(self._devices)])
                return self._elsewhere(reply.samples[len(self._devices):])
        return None

    def _elsewhere(self, others: Sequence[Sample]) -> schema.Warning | None:
        """That processes of the run compute on these devices, which it does not hold."""
        there = [s.device for s in others if not s.problem and any(
            p.kind == "compute" and p.run == self._run.path.name for p in s.processes or ())]
        if not there or self._told:
            return None
        self._told = True
        return notices.elsewhere([d.label for d in there], [d.label for d in self._devices],
                                 ",".join(d.id for d in there))

    def _write(self, samples: Sequence[Sample]) -> None:
        # Beside a problem, the figures are those of an earlier reading.
        told = [s if s.problem is None else Sample(s.device) for s in samples]
        if self._writer is None:
            node = os.environ.get("SLURMD_NODENAME", self._run.node)
            file = f"{NODES}/{node}.{DEVICES}" if self._run.node else DEVICES
            self._writer = EventWriter(self._run.path / file)
        self._writer.write(encode(schema.Devices(
            tuple(s.device.id for s in told),
            utilization=_known(_short(s.utilization, 3) for s in told),
            memory_used=_known(s.memory_used for s in told),
            temperature=_known(_short(s.temperature, 1) for s in told),
            power=_known(_short(s.power, 1) for s in told),
            clock=_known(round(s.clock_sm / s.clock_sm_max, 3) if s.clock_sm_max
                         and s.clock_sm is not None else None for s in told),
            throttle=_known(None if s.throttle is None else ", ".join(s.throttle) for s in told),
            others=_known(_others(s) for s in told))))


def _known(values: Iterable[_V | None]) -> tuple[_V | None, ...]:
    """The values; none at all if none is known."""
    found = tuple(values)
    return () if found.count(None) == len(found) else found


def _others(sample: Sample) -> float | None:
    """The share of its time that a device spends on processes which are not below this one; None
    where it is not known of any of them, or whose they are: the server of MPS works for others."""
    if sample.processes is None or any(
            p.kind == "mps" or not p.visible for p in sample.processes):
        return None
    # Of one that has ended nothing is known to be above it: it may have been ours.
    others = [p.utilization for p in sample.processes
              if os.getpid() not in procs.ancestors(p.pid) and procs.stat(p.pid) is not None]
    known = [share for share in others if share is not None]
    return round(sum(known), 3) if known or not others else None


def _short(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
