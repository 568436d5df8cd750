"""How much one host may write to this disk, and how fast."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.runs import disk_room

FLOOR = 512 << 20
"""Free bytes below which nothing of a host is written any more."""
BUDGET = 32 << 30
"""Bytes of one host in one run."""
RATE = 16 << 20
"""Bytes of each rank in a second, on average."""
BURST = 64.0
"""Seconds' worth that may come at once, as after a connection that was broken for long."""


class Allowance:
    """What is left of it for a host with so many `ranks`, whose files are in the folder `run`."""

    def __init__(self, run: Path, ranks: int) -> None:
        self._run, self._rate = run, RATE * max(ranks, 1)
        self._taken = 0
        self._due = 0.0
        """When what has come would have come at that rate, monotonic seconds."""

    def begin(self, taken: int) -> None:
        """So many bytes of the host are here already."""
        self._taken = taken

    def refusal(self, count: int) -> str | None:
        """Why so many bytes more are not written; None if they may be."""
        if self._taken + count > BUDGET:
            return f"more than {units.size(BUDGET)} came from there"
        free = disk_room.of(self._run).free
        if free is not None and free - count < FLOOR:
            return f"less than {units.size(FLOOR)} would be free on the disk of {self._run}"
        return None

    def spend(self, count: int) -> float:
        """So many bytes were written. Returns for how many seconds no more is to be taken."""
        now = time.monotonic()
        self._taken += count
        self._due = max(self._due, now - BURST) + count / self._rate
        return max(0.0, self._due - now)
