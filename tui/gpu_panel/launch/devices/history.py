"""Utilisation and memory of devices over the last five minutes, for their graphs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_engine.devices.records import Sample, Snapshot

SPAN = 300
"""Seconds that are kept, one value for each."""
BRIDGED = 15
"""Seconds between two snapshots over which the earlier value is taken to hold, as hosts and slow
settings are read less often than once a second. Longer ones are gaps."""

_Second = tuple[int, float | None, float | None]
"""When, in whole Unix seconds, and the shares of utilisation and memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """How five minutes are spread over the cells of a graph."""

    cells: int
    seconds: int
    """Of one cell. A whole number, so that a value stays in its cell until the graph moves on."""


def span(width: int, dots: int = 1) -> Span:
    """Five minutes in at most `width` cells, each of `dots` columns."""
    seconds = max(1, math.ceil(SPAN / max(width * dots, 1))) * dots
    return Span(min(width, math.ceil(SPAN / seconds)), seconds)


class History:
    """Shares from 0 to 1 for each device; None if the driver did not report one."""

    def __init__(self) -> None:
        self.until = 0
        """The newest snapshot's Unix second, by the clock of its machine."""
        self._newest: Snapshot | None = None
        self._kept: dict[str, deque[_Second]] = {}

    def learn(self, recent: Sequence[Snapshot]) -> None:
        """Take in those of the snapshots (oldest first) that are new."""
        new: list[Snapshot] = []
        for shot in reversed(recent):
            if shot is self._newest:
                break
            new.append(shot)
        for shot in reversed(new):
            self._newest, at = shot, int(shot.taken)
            if at <= self.until - SPAN:  # the clock was set back
                self._kept.clear()
            elif at < self.until:
                continue
            self.until = at
            for sample in shot.samples:
                self._add(at, sample)

    def _add(self, at: int, sample: Sample) -> None:
        kept = self._kept.setdefault(sample.device.id, deque(maxlen=SPAN))
        total = sample.memory_total or sample.device.memory_total
        used = sample.memory_used
        if kept and kept[-1][0] == at:
            kept.pop()
        kept.append((at, _share(sample.utilization),
                     _share(used / total if used is not None and total else None)))

    def utilization(self, device_id: str, over: Span, dots: int = 1) -> list[float | None]:
        """The means of a device's utilisation, `dots` a cell, the newest last. None: not known."""
        return self._columns(self._kept.get(device_id, ()), 1, over, dots)

    def memory(self, device_id: str, over: Span, dots: int = 1) -> list[float | None]:
        """The means of the share of a device's memory that is used, likewise."""
        return self._columns(self._kept.get(device_id, ()), 2, over, dots)

    def _columns(self, kept: Sequence[_Second] | deque[_Second], which: int, over: Span,
                 dots: int) -> list[float | None]:
        each, count = max(1, over.seconds // dots), over.cells * dots
        first = (self.until // over.seconds + 1) * dots - count
        """Number of the first column, from the epoch: columns stay until the graph moves on."""
        sums, counts = [0.0] * count, [0] * count
        before, value = None, None
        for second in kept:
            at = second[0]
            if before is not None and 1 < at - before <= BRIDGED and value is not None:
                for between in range(before // each + 1, at // each):
                    if 0 <= between - first < count:
                        sums[between - first], counts[between - first] = value, 1
            before, value = at, second[which]
            column = at // each - first
            if value is not None and 0 <= column < count:
                sums[column] += value
                counts[column] += 1
        return [s / n if n else None for s, n in zip(sums, counts, strict=True)]


def _share(value: float | None) -> float | None:
    return min(1.0, max(0.0, value)) if value is not None and math.isfinite(value) else None
