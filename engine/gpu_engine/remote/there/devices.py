"""The machine's devices, and how they are: the same snapshots as on its own screen."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_engine.common import paths
from gpu_engine.devices import availability, leases
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Snapshot
from gpu_engine.devices.sampler import Sampler, take_several
from gpu_engine.remote.reach.protocol import Devices, Looked, Watch
from gpu_engine.remote.there.wire import Asked

_QUICKEST = 0.25


def devices(asked: Asked, request: Watch) -> None:
    inventory = cpu_slots() if request.slots else discover()
    asked.send(Devices(inventory))
    if request.once:
        asked.send(_looked(take_several(inventory)))
        return
    interval = max(request.interval, _QUICKEST)
    with Sampler(inventory, runs_folder=paths.runs_folder(), interval=interval) as sampler:
        before: Snapshot | None = None
        while True:
            asked.pause(_QUICKEST / 2)
            newest = sampler.latest
            if newest is None or newest is before:
                continue
            before = newest
            asked.send(_looked(sampler.recent[-availability.READINGS:], newest))


def _looked(snapshots: Sequence[Snapshot], newest: Snapshot | None = None) -> Looked:
    held = leases.holders(paths.leases_folder())
    found = availability.judge_all(snapshots, held) if snapshots else {}
    return Looked(newest or snapshots[-1], found)
