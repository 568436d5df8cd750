"""The rule of the line: who waits before whom, who starts now and on which devices, and what the
others wait for. Pure.

The runs are looked at in the order of the line. Each either starts, or keeps all devices that it
could use from those behind it: so a later run starts first only on devices that the earlier ones
can't use at all, and delays none of them. A run whose time has not come, or that follows another
run, does not stand in the line yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    since: float | None = None
    """Since when it has been free, monotonic seconds; None: it is not."""
    cpu: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One place in the line."""

    id: str
    """The run's id; for another user's run, the name of its file."""
    wants: Wants
    owner: str | None = None
    """The other user whose run it is; None: ours."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A waiting run and where it would stand if nobody else waited."""

    request: Request
    owner: tuple[int, str]
    """The uid, and the folder of the queue: a user may have several."""
    file: str | None
    """The name of its file, which begins with the time; None: it has none yet."""
    order: tuple[float, float, float, str]
    """Its place among the owner's runs, `runs.waiting.place`."""


@dataclass(frozen=True, slots=True)
class Start:
    """It starts now, on these devices."""

    id: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """It waits; `reason` is to follow "waits"."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """It is another user's turn: what their run waits for is free."""

    id: str


Decision = Start | Wait | Turn
Choose = Callable[[int, Sequence[str]], Sequence[str] | None]
"""Chooses so many of these devices, the best first; None if they do not go together."""

PLACES = 16
"""How many places a user takes among all users: whoever queues a thousand runs leaves room for
others between."""


def in_turn(runs: Sequence[Standing]) -> list[Request]:
    """The line of all users, first come first: an owner's k-th run, in the owner's own order, has
    the k-th place that the owner has taken. So moving a run changes which of the owner's runs goes
    first, and nothing for anybody else."""
    owners: dict[tuple[int, str], list[Standing]] = {}
    for run in runs:
        owners.setdefault(run.owner, []).append(run)
    placed: list[tuple[tuple[int, object], Request]] = []
    for own in owners.values():
        files = sorted(run.file for run in own if run.file is not None)
        for k, run in enumerate(sorted(own, key=lambda run: run.order)):
            # Those beyond the places that count are behind everybody, in their own order.
            counts = k < min(len(files), PLACES)
            placed.append(((0, files[k]) if counts else (1, run.order), run.request))
    return [request for _, request in sorted(placed, key=lambda pair: pair[0])]


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


def decide(line: Sequence[Request], devices: Mapping[str, DeviceNow], *, monotonic: float,
           choose: Choose) -> list[Decision]:
    """What becomes of each of our runs in the line, and whose turn it is of the other users' runs.
    `monotonic`: the clock of `DeviceNow.since`."""
    kept: dict[str, Request] = {}
    """Device → the run before that could use it, or starts on it."""
    out: list[Decision] = []
    for request in line:
        wants = request.wants
        able = [devices[i] for i in _candidates(wants, devices)]
        open_to_it = [d for d in able if d.id not in kept]
        if not open_to_it and able and not wants.ids:
            if request.owner is None:  # most of a long line; nothing of it is worked out
                out.append(Wait(request.id, BEHIND))
            continue
        ready = [d for d in open_to_it if _ready(d, wants, monotonic)]
        taken: Sequence[str] | None = None
        if wants.ids:
            taken = wants.ids if len(ready) == len(set(wants.ids)) else None
        elif 0 < wants.count <= len(ready):
            taken = choose(wants.count, [d.id for d in ready])
        for device in able:
            if taken is None or device.id in taken or request.owner is not None:
                kept.setdefault(device.id, request)
        if request.owner is not None and taken is not None:
            out.append(Turn(request.id))  # which devices they take is theirs to choose
        if request.owner is None:
            out.append(Start(request.id, tuple(taken)) if taken is not None else
                       Wait(request.id, _why(request, able, ready, kept, devices, monotonic)))
    return out


def _candidates(wants: Wants, devices: Mapping[str, DeviceNow]) -> list[str]:
    """The devices that the run could use if they were free."""
    if wants.ids:
        return [i for i in dict.fromkeys(wants.ids) if i in devices]
    return [d.id for d in devices.values() if d.cpu == wants.cpu
            and (not wants.within or d.id in wants.within)
            and (wants.free is None or d.total is None or d.total >= wants.free)]


def _ready(device: DeviceNow, wants: Wants, monotonic: float) -> bool:
    if wants.free is not None and (device.memory is None or device.memory < wants.free):
        return False
    if wants.share:
        return device.usable
    if not device.free:
        return False
    return not wants.free_for or (device.since is not None
                                  and monotonic - device.since >= wants.free_for)


def _why(request: Request, able: Sequence[DeviceNow], ready: Sequence[DeviceNow],
         kept: Mapping[str, Request], devices: Mapping[str, DeviceNow], monotonic: float) -> str:
    wants = request.wants
    if missing := [i for i in wants.ids if i not in devices]:
        return f"for {missing[0]}, which this machine does not have now"
    if not wants.ids:
        return _why_any(wants, able, ready)
    parts = []
    for device in able:
        before = kept.get(device.id)
        if device in ready:
            continue
        if before is not None and before is not request:
            whose = f"a run of {before.owner}" if before.owner else f"run {before.id}"
            parts.append(f"{device.label}, for which {whose} comes first")
        else:
            parts.append(f"{device.label}, which {_lacks(device, wants, monotonic)}")
    return "for " + "; ".join(parts)


def _why_any(wants: Wants, able: Sequence[DeviceNow], ready: Sequence[DeviceNow]) -> str:
    if len(able) < wants.count:
        there = f"{len(able)} here {'is' if len(able) == 1 else 'are'} large enough" \
            if wants.free else f"this machine has {len(able)}"
        return f"for {wants.text}; {there}"
    if len(ready) >= wants.count:
        return f"for {wants.text} that go together"
    return f"for {wants.text}: {len(ready) or 'none'} of {len(able)} now"


def _lacks(device: DeviceNow, wants: Wants, monotonic: float) -> str:
    if device.why and not (wants.share and device.usable):
        return device.why
    if wants.free is not None and (device.memory is None or device.memory < wants.free):
        return f"has {units.size(device.memory)} free of the {units.size(wants.free)} it needs"
    if device.since is not None:
        return (f"has been free for {monotonic - device.since:.0f} s of the "
                f"{wants.free_for:.0f} s it needs")
    return "is not free"
