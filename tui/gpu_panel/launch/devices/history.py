"""Utilisation and memory of the devices in the last two minutes, for the small curves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_panel.charts.sparkline import bar

if TYPE_CHECKING:
    from gpu_engine.devices.records import Snapshot

KEPT = 120
"""Snapshots that are kept: two minutes at one a second."""


class History:
    """Shares from 0 to 1 for each device; None if the driver did not report one."""

    def __init__(self) -> None:
        self.seen = 0
        """The number of snapshots so far."""
        self._newest: Snapshot | None = None
        self._utilization: dict[str, deque[float | None]] = {}
        self._memory: dict[str, deque[float | None]] = {}

    def learn(self, recent: Sequence[Snapshot]) -> None:
        """Take in those of the snapshots (oldest first) that are new."""
        new: list[Snapshot] = []
        for shot in reversed(recent[-KEPT:]):
            if shot is self._newest:
                break
            new.append(shot)
        for shot in reversed(new):
            self.seen += 1
            self._newest = shot
            for sample in shot.samples:
                device = sample.device
                total = sample.memory_total or device.memory_total
                used = sample.memory_used
                self._of(self._utilization, device.id).append(sample.utilization)
                self._of(self._memory, device.id).append(
                    used / total if used is not None and total else None)

    def utilization(self, device_id: str, width: int) -> str:
        """The curve of a device's utilisation in `width` cells, newest on the right."""
        return self._curve(self._utilization.get(device_id), width)

    def memory(self, device_id: str, width: int) -> str:
        """The curve of the share of a device's memory that is used, likewise."""
        return self._curve(self._memory.get(device_id), width)

    def _of(self, kept: dict[str, deque[float | None]], device_id: str) -> deque[float | None]:
        if device_id not in kept:
            kept[device_id] = deque(maxlen=KEPT)
        return kept[device_id]

    def _curve(self, values: deque[float | None] | None, width: int) -> str:
        return curve(values or (), width, self.seen)


def curve(values: Sequence[float | None], width: int, seen: int | None = None) -> str:
    """Shares as a row of bars on a fixed scale from 0 to 1, so that an idle device is flat.

    A cell is the mean of several snapshots; unknown values leave a gap. `seen` is the number of
    snapshots in all: with it, a snapshot stays in its cell, so that only the last cell changes
    until it is full.
    """
    if width <= 0:
        return ""
    per = max(1, math.ceil(KEPT / width))
    points = list(values)
    begun = (len(points) if seen is None else seen) % per  # snapshots in the last cell so far
    cells: list[str] = []
    end = len(points)
    start = end - (begun or per)
    while end > 0 and len(cells) < width:
        cells.append(_cell(points[max(0, start):end]))
        start, end = start - per, start
    return "".join(reversed(cells)).rjust(width)


def _cell(part: Sequence[float | None]) -> str:
    known = [min(1.0, max(0.0, v)) for v in part if v is not None and math.isfinite(v)]
    if not known:
        return " "
    return bar(sum(known) / len(known))
