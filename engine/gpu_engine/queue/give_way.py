"""A run that makes room for others (run.give_way), from the inside: while its ranks train, its
supervisor looks at who waits for its devices, and at who computes on them.

Nobody preempts it: it reads the files of the runs that wait (`devices/leases.py`), of all users of
the machine, and decides by the rule of `turns`, as each of the others does that gives way. It is
in the line again before its ranks are told to save. From then on it waits as before its first
start, killed or not, and goes on from what it has saved.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.files import user_name
from gpu_engine.devices import availability, leases
from gpu_engine.devices.discover import cpu_slots
from gpu_engine.devices.records import Device, Sample
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.queue import turns
from gpu_engine.queue.turns import DeviceNow, GivesWay
from gpu_engine.queue.wait import standing
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Run
from gpu_engine.runs.waiting import Entry
from gpu_engine.supervisor.device_record import DeviceRecord

EVERY = 2.0
"""Seconds between two looks."""


class Room:
    """For whom one run makes room."""

    @classmethod
    def of(cls, run: Run) -> Room | None:
        """None if it makes none: it has never waited, or was told not to any more."""
        plan, entry = run.plan(), waiting.read(run.path, waiting.PLACE)
        if plan is None or entry is None or not plan.spec.run.give_way:
            return None
        return cls(run, entry, plan)

    def __init__(self, run: Run, entry: Entry, plan: LaunchPlan) -> None:
        """`entry`: its place in the line, which it gets again."""
        self.run, self.entry, self.spec = run, entry, plan.spec
        self.cpu = plan.device_type == "cpu"
        self.mine = {d.id for r in plan.ranks for d in r.devices}
        self._looked = float("-inf")
        self._strangers = frozenset[int]()
        """The pids that were on its devices when those were read last, and are not its own."""
        self._seen: tuple[Sample, ...] = ()

    def __call__(self, devices: DeviceRecord, began: float, saved: bool) -> str | None:
        """See `supervise.Way`. Raises OSError."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return None
        self._looked = now
        if (stranger := self._stranger(devices.seen)) is not None:
            return stranger
        if not saved and time.time() - began < self.spec.run.give_way_after:
            return None
        found = cpu_slots().devices if self.cpu else devices.found
        return self._waiting(found, {s.device.id: s for s in devices.seen}) if found else None

    def stand(self) -> None:
        waiting.enter(self.run.path)
        waiting.write(self.run.path, self.entry)

    def leave(self) -> None:
        waiting.leave(self.run.path)

    def _stranger(self, seen: tuple[Sample, ...]) -> str | None:
        """A process that is none of gpu-panel's and computes on the devices, in words: one that two
        readings have found. One that the driver hides, as from a container, is not looked for by
        the memory that it takes: the driver says 0 of ours there, and what torch's ranks say of
        themselves lacks what NCCL and others take, which grows at any time. A run that took its own
        for a stranger's would make room for itself again and again."""
        if seen is self._seen or self.spec.devices.share:
            return None
        self._seen = seen
        on = [p for s in seen if s.device.id in self.mine for p in s.processes or ()]
        # A driver that tells a container the machine's pids: another process has our own's here.
        told = () if not all(p.visible for p in on) else on
        # Of a command that starts a container no process is below us: what is in one is not said to
        # be a stranger's before one of ours was seen beside it.
        ours = any(p.run == self.run.id for p in on)
        there = {p.pid: p for p in told if p.kind == "compute" and p.run is None
                 and p.pid != os.getpid() and (ours or p.container is None)}
        twice, self._strangers = self._strangers & there.keys(), frozenset(there)
        if not twice:
            return None
        one = there[min(twice)]
        who = f" of {clean(one.user, 40)}" if one.user else ""
        return f"{clean(one.command or 'a process', 40)} (pid {one.pid}){who}"

    def _waiting(self, found: tuple[Device, ...], seen: dict[str, Sample]) -> str | None:
        """The run for which this one makes room, in words, by who waits and who holds what."""
        folder = paths.leases_folder()
        holders = leases.holders(folder)
        now, giving = dict[str, DeviceNow](), dict[tuple[str | None, str | None], GivesWay]()
        for device in found:
            first, sample = holders.get(leases.key(device)), seen.get(device.id)
            why = "" if first is None else f"is held by {first}"
            if first is None and sample is not None and availability.in_the_way(sample):
                why = "is not free"
            elif first is not None and first.makes_room:
                whose = first.user, first.run
                before = giving.get(whose, GivesWay(whose, (), first.since or 0.0))
                giving[whose] = replace(before, devices=(*before.devices, device.id))
            now[device.id] = DeviceNow(device, why, memory=device.memory_total)
        line = [r for r in standing(folder, found, cpu=self.cpu) if not r.wants.give_way]
        mine = turns.make_room(line, tuple(giving.values()), now).get(
            (clean(user_name(os.geteuid()), 40), self.run.id))
        if mine is None:
            return None
        who = f"run {clean(mine.id, 40)}" if mine.id else "a hold"
        return who + (f" of {mine.owner}" if mine.owner else "")
