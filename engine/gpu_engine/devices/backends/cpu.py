"""CPU slots: the cores that this process may use, in at most eight equal groups."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpu_engine.common import cgroups
from gpu_engine.devices import host
from gpu_engine.devices.backends.registry import Backend, Reader
from gpu_engine.devices.records import Device, Inventory, Sample

MOST_SLOTS = 8


class Cpu(Backend):
    """The backend for CPU slots. It is always present and needs no driver."""

    name = "cpu"
    asks_driver = False
    missing = "this machine does not describe its processor"
    gone = "these cores are offline"

    def present(self) -> bool:
        return True

    def discover(self, environ: Mapping[str, str], patience: float) -> Inventory:
        """Find the cores that this process may use. Its CPU affinity restricts them; no variable
        in `environ` does."""
        cores = list(range(os.cpu_count() or 1))
        with contextlib.suppress(OSError):
            cores = sorted(os.sched_getaffinity(0))
        _, memory = host.memory()
        return replace(self.nothing(environ), devices=slots(cores, memory, cgroups.cpus()))

    def open(self, devices: Sequence[Device]) -> Sequence[Reader]:
        return [CpuReader(devices)]


def slots(cores: list[int], memory_total: int | None = None, quota: float | None = None
          ) -> tuple[Device, ...]:
    """Divide `cores` into at most `MOST_SLOTS` groups that differ by at most one core, the larger
    ones first.

    `quota` is how many CPUs' worth of time a container may use, and the slots are no more than
    that: ranks that wait for each other gain nothing from a slot that does not get to run.
    """
    count = min(MOST_SLOTS, len(cores))
    if quota is not None:
        count = max(1, min(count, int(quota)))
    size, larger = divmod(len(cores), count)
    starts = [number * size + min(number, larger) for number in range(count + 1)]
    groups = [tuple(cores[start:stop]) for start, stop in pairwise(starts)]
    return tuple(Device(f"cpu:{number}", "cpu", _name(group), index=number,
                        memory_total=memory_total, cores=group)
                 for number, group in enumerate(groups))


def _name(cores: tuple[int, ...]) -> str:
    if len(cores) == 1:
        return f"CPU core {cores[0]}"
    parts, first = [], cores[0]
    for core, after in zip(cores, (*cores[1:], -1), strict=True):
        if after != core + 1:
            parts.append(f"{first}-{core}" if core > first else str(core))
            first = after
    return f"CPU cores {','.join(parts)}"


class CpuReader(Reader):
    """Reads CPU slots. Utilisation is measured since the reading before."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__(devices)
        self._before = host.core_times()

    def read(self) -> tuple[Sample, ...]:
        """Read a sample of each slot. Memory is that of the whole machine or container."""
        taken, after = time.time(), host.core_times()
        used, total = host.memory()
        samples = []
        for device in self.devices:
            shares = [s for core in device.cores if (
                s := host.busy_share(self._before.get(core), after.get(core))) is not None]
            offline = bool(after) and not any(core in after for core in device.cores)
            samples.append(Sample(
                device, utilization=sum(shares) / len(shares) if shares else None,
                memory_used=used, memory_total=total, problem=Cpu.gone if offline else None,
                lost=offline, taken=taken))
        self._before = after
        return tuple(samples)
