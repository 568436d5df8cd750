"""Whether a run that is started at once takes devices for which others wait in the queue.

It may: the queue is an order among those who wait. But the person should know.
"""

from __future__ import annotations

import socket
import time

from gpu_engine.common import paths, units
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Run
from gpu_engine.runs.waiting import Entry
from gpu_engine.spec.schema import RunSpec


def overtaken(spec: RunSpec, inventory: Inventory) -> str | None:
    """A sentence about the first run that waits for a device that `spec` names; None if none does.
    A run that waits for a time or for another run does not wait for devices yet."""
    line = waiting.line(paths.queue_folder())
    if not line or not spec.devices.ids:
        return None
    found = [inventory.find(name) for name in spec.devices.ids]
    taken = [device for device in found if device is not None]
    host, now = socket.gethostname(), time.time()
    waits = {name: what for name, entry in line.items() if entry.host == host
             and (what := _wanted(entry, taken)) and not _early(entry, now)}
    if not waits:
        return None
    first, what = next(iter(waits.items()))
    more = len(waits) - 1
    others = f", and {more:,} more wait{'s' * (more == 1)} behind it" if more else ""
    return (f"run {first} has been waiting for {what} since "
            f"{units.time_of_day(line[first].submitted, now)}{others}: this run goes first; with "
            "gpu-engine run --queue, or Q in the panel, it lines up behind")


def _wanted(entry: Entry, taken: list[Device]) -> str:
    """Which of its devices are taken from a waiting run; "" if none are."""
    if entry.share and entry.free is None:
        return ""  # it does not mind
    if entry.ids:
        return ", ".join(d.label for d in taken if {d.id, d.uuid} & {*entry.ids})
    able = [d for d in taken if d.is_cpu == entry.cpu
            and (not entry.within or {d.id, d.uuid} & {*entry.within})
            and (entry.free is None or d.memory_total is None or d.memory_total >= entry.free)]
    kind = "CPU slot" if entry.cpu else "GPU"
    return f"any {entry.count} {kind}{'s' * (entry.count > 1)}" if able else ""


def _early(entry: Entry, now: float) -> bool:
    if entry.begin is not None and entry.begin > now:
        return True
    return entry.after is not None \
        and Run(paths.runs_folder() / entry.after).state().state != "completed"
