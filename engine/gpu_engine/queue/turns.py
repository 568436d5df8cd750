"""The rule of the line: who waits before whom, whether a run starts now and on which devices, and
what it waits for otherwise. Pure.

Each run ahead either starts, or keeps all devices that it could use from those behind it: so a
later run starts first only on devices that the earlier ones can't use at all, and delays none of
them. A run whose time has not come, or that follows another run, does not stand in the line yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.runs.waiting import BEHIND, Entry, Wants


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device, as it is now."""

    id: str
    label: str
    free: bool
    """Nobody uses it, by the rule of `devices.availability`."""
    why: str
    """What keeps it from being free, to follow its label: "is held by run 3f2a"; "" if it is."""
    usable: bool = True
    """It works, so that a run could share it."""
    memory: int | None = None
    """Bytes of its memory that are free; None: not known."""
    total: int | None = None
    """Bytes of its memory; None: not known."""
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One place in the line."""

    id: str
    """The run's id."""
    wants: Wants
    owner: str | None = None
    """The other user whose run it is; None: ours."""


@dataclass(frozen=True, slots=True)
class Start:
    """It starts now, on these devices."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """It waits; `reason` is to follow "waits"."""

    reason: str


Choose = Callable[[int, Sequence[str]], Sequence[str] | None]
"""Chooses so many of these devices, the best first; None if they do not go together."""


def in_turn(owners: Iterable[tuple[Sequence[Request], Iterable[str]]]) -> list[Request]:
    """The line of all users: everybody's first run, who came first first, then everybody's second.
    `owners`: of each the runs in their own order, and the names of their files, which begin with
    the time of submission. So whoever queues a hundred runs, or moves some of them, does not come
    between others and their first."""
    placed: list[tuple[int, str, Request]] = []
    for runs, names in owners:
        files = sorted(names)
        placed += [(k, files[k] if k < len(files) else "~", run) for k, run in enumerate(runs)]
    return [run for *_, run in sorted(placed, key=lambda place: place[:2])]


def early(entry: Entry, first: str | None, now: float) -> tuple[str, bool] | None:
    """Why the run can't start yet, whatever the devices are, to follow "waits", and False; or why
    it never can, and True; None if that depends on the devices. `first`: the state of the run that
    has to complete before, None if there is no such run. `now`: Unix seconds."""
    if entry.after is not None and first != "completed":
        run = entry.after
        if first is None:
            return f"run {run}, which it was to follow, does not exist", True
        if ended := {"failed": "failed", "stopped": "was stopped", "lost": "is lost"}.get(first):
            return f"run {run}, which it was to follow, {ended}", True
        return f"for run {run} to complete", False
    if entry.begin is not None and entry.begin > now:
        return f"until {units.time_of_day(entry.begin, now)}", False
    return None


def decide(ahead: Sequence[Request], mine: Request, devices: Mapping[str, DeviceNow], *,
           choose: Choose) -> Start | Wait:
    """What becomes of a run, with these others ahead of it in the line."""
    kept: dict[str, Request] = {}
    """Device → the run before that could use it, or starts on it."""
    for request in (*ahead, mine):
        wants = request.wants
        able = [devices[i] for i in _candidates(wants, devices)]
        ready = [d for d in able if d.id not in kept and _ready(d, wants)]
        taken: Sequence[str] | None = None
        if wants.ids:
            taken = wants.ids if len(ready) == len(set(wants.ids)) else None
        elif 0 < wants.count <= len(ready):
            taken = choose(wants.count, [d.id for d in ready])
        if request is mine:
            return Start(tuple(taken)) if taken is not None else \
                Wait(_why(wants, able, ready, kept, devices))
        if len(able) < wants.count or not (wants.ids or wants.count):
            continue  # this machine will not have so many
        for device in able:
            if taken is None or device.id in taken:
                kept.setdefault(device.id, request)
    raise AssertionError


def _candidates(wants: Wants, devices: Mapping[str, DeviceNow]) -> list[str]:
    """The devices that the run could use if they were free."""
    if wants.ids:
        return [i for i in dict.fromkeys(wants.ids) if i in devices]
    return [d.id for d in devices.values() if d.cpu == wants.cpu
            and (not wants.within or d.id in wants.within)
            and (wants.free is None or d.total is None or d.total >= wants.free)]


def _ready(device: DeviceNow, wants: Wants) -> bool:
    if wants.free is not None and (device.memory is None or device.memory < wants.free):
        return False
    return device.usable if wants.share else device.free


def _why(wants: Wants, able: Sequence[DeviceNow], ready: Sequence[DeviceNow],
         kept: Mapping[str, Request], devices: Mapping[str, DeviceNow]) -> str:
    if missing := [i for i in wants.ids if i not in devices]:
        return f"for {missing[0]}, which this machine does not have now"
    if wants.ids:
        parts = []
        for device in (d for d in able if d not in ready):
            before = kept.get(device.id)
            lacks = _lacks(device, wants) if before is None else "for which a run of " \
                f"{before.owner} comes first" if before.owner else \
                f"for which run {before.id} comes first"
            parts.append(f"{device.label}, {lacks}")
        return "for " + "; ".join(parts)
    if able and all(d.id in kept for d in able):
        return BEHIND
    if len(able) < wants.count:
        there = f"{len(able)} here {'is' if len(able) == 1 else 'are'} large enough" \
            if wants.free else f"this machine has {len(able)}"
        return f"for {wants.text}; {there}"
    if len(ready) >= wants.count:
        return f"for {wants.text} that go together"
    return f"for {wants.text}: {len(ready) or 'none'} of {len(able)} now"


def _lacks(device: DeviceNow, wants: Wants) -> str:
    if device.why and not (wants.share and device.usable):
        return f"which {device.why}"
    if wants.free is not None and (device.memory is None or device.memory < wants.free):
        return f"which has {units.size(device.memory)} free of the {units.size(wants.free)} it " \
            "needs"
    return "which is not free"
