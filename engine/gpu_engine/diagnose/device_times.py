"""What a run's devices did in the last minutes, from `devices.jsonl`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.events import schema
from gpu_engine.events.paths import devices_paths
from gpu_engine.events.reader import backwards

LAST = 60
"""Readings that are looked at: five minutes."""
_MOST = 1024
"""Devices of a machine."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment; fields as in `schema.Devices`."""

    utilization: float | None = None
    temperature: float | None = None
    clock: float | None = None
    throttle: str | None = None
    others: float | None = None


_FIELDS = tuple(one.name for one in fields(Reading))


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The last readings of one device, oldest first."""

    name: str
    """"GPU 0", "GPU 0 of gpu1"."""
    readings: tuple[Reading, ...]

    def known(self, field: str) -> list[float]:
        """The values of a field, where they are known and can be true."""
        return [v for r in self.readings
                if (v := getattr(r, field)) is not None and 0 <= v < float("inf")]


class Readings:
    """The last readings of all devices of a run."""

    def __init__(self, since: float = 0.0) -> None:
        """`since`: leave out what is older, Unix seconds."""
        self._since = since
        self._last: dict[str | None, deque[schema.Devices]] = {}

    def add(self, host: str | None, event: schema.Devices) -> None:
        """Add the next reading of a machine; `host` None: this one."""
        if event.t >= self._since:
            self._last.setdefault(host, deque(maxlen=LAST)).append(event)

    def devices(self) -> list[DeviceTimes]:
        """What each device did that was there at the end."""
        found = []
        for host, events in self._last.items():
            for at, name in enumerate(events[-1].ids[:_MOST]):
                each = tuple(  # a reading has nothing of a field that is known of no device
                    Reading(*(next(iter(getattr(event, one)[at:at + 1]), None) for one in _FIELDS))
                    for event in events if event.ids[at:at + 1] == (name,))
                label = f"GPU {name}" if name.isdecimal() else clean(name, 60)
                found.append(DeviceTimes(f"{label} of {clean(host, 60)}" if host else label, each))
        return found


def read(run: Path, since: float = 0.0) -> list[DeviceTimes]:
    """What each device of the run in this folder did. `since`: as for `Readings`."""
    readings = Readings(since)
    for host, path in devices_paths(run).items():
        for event in reversed([*islice(backwards(path, schema.Devices), LAST)]):
            readings.add(host, event)
    return readings.devices()


def idle(devices: Sequence[DeviceTimes], least: int) -> float | None:
    """The share of the time for which even the busiest device had nothing to do; None where it is
    not known of one, by at least so many readings."""
    each = [device.known("utilization") for device in devices]
    if not each or any(len(known) < least for known in each):
        return None
    return 1 - max(sum(known) / len(known) for known in each)
