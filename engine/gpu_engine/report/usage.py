"""Who had which devices for how long: device-hours of runs, holds and other users.

A device that two runs share counts for both.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_engine.devices.use_log import Use
from gpu_engine.runs import digest
from gpu_engine.runs.folder import LIVE, each_run, foreign_parts
from gpu_engine.runs.trust import other_owner


def of_runs(since: float, now: float) -> Iterator[Use]:
    """What runs have used between two times (Unix seconds), and parts of others' that were here.
    One that can't be read is left out."""
    parts = [(part, f"{of.run} of {of.machine}") for part, of in foreign_parts()]
    for run, called in (*((run, run.id) for run in each_run()), *parts):
        said = digest.find(run) or digest.of(run)
        user = other_owner(run.path) or getpass.getuser()
        for start, ended in said.spans:
            end = ended or (now if said.state in LIVE else said.ended)
            if end is not None and end > since and start < now:
                yield from (Use(user, label, max(start, since), min(end, now), called)
                            for label in said.devices)


@dataclass(slots=True)
class Sum:
    """The device-seconds of a user, a run or a device."""

    name: str
    runs: float = 0.0
    holds: float = 0.0
    seen: float = 0.0
    """Of other users, as far as a panel looked."""

    slots: float = 0.0
    """Of CPU slots, in runs and holds: no GPU's time, so that it is in none of the others."""

    @property
    def all(self) -> float:
        """Of runs, holds and others."""
        return self.runs + self.holds + self.seen


def sums(uses: Iterable[Use], by: str) -> list[Sum]:
    """The sum of each user, run or device (`by`), the most first."""
    found: dict[str, Sum] = {}
    for use in uses:
        name = {"user": use.user, "device": use.device, "run": use.run or use.kind}[by]
        row, seconds = found.setdefault(name, Sum(name)), use.end - use.start
        if use.device.startswith("CPU"):
            row.slots += seconds
        elif use.kind == "run":
            row.runs += seconds
        elif use.kind == "hold":
            row.holds += seconds
        else:
            row.seen += seconds
    return sorted(found.values(), key=lambda row: (-row.all, -row.slots))
