"""Decides which waiting runs start now, on which devices, and what the others wait for. Pure.

The runs are looked at in the order of the line. Each either starts, or keeps all devices that it
could use from those behind it: so a later run starts first only on devices that the earlier ones
can't use at all, and delays none of them. A run whose time has not come, or that follows another
run, keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.runs.waiting import Wants


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
class After:
    """What became of the run that has to complete first."""

    run: str
    state: str | None
    """Its state; None: there is no such run."""


@dataclass(frozen=True, slots=True)
class Request:
    """One place in the line."""

    id: str
    """The run's id; for another user's run, something that names its place."""
    wants: Wants
    begin: float | None = None
    """Unix seconds."""
    after: After | None = None
    owner: str | None = None
    """The other user whose run it is: it is not started here. None: ours."""


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
class Never:
    """It can't ever start, for this reason."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Turn:
    """It is another user's turn: what their run waits for is free."""

    id: str


Decision = Start | Wait | Never | Turn
Choose = Callable[[int, Sequence[str]], Sequence[str] | None]
"""Chooses so many of these devices, the best first; None if they do not go together."""

_BEHIND = "for runs ahead of it"


def decide(line: Sequence[Request], devices: Mapping[str, DeviceNow], *, now: float,
           monotonic: float, choose: Choose) -> list[Decision]:
    """What becomes of each of our runs in the line, and whose turn it is of the other users' runs.
    `now`: Unix seconds; `monotonic`: the clock of `DeviceNow.since`."""
    kept: dict[str, Request] = {}
    """Device → the run before that could use it, or starts on it."""
    out: list[Decision] = []
    for request in line:
        if (known := early(request, now)) is not None:
            out.append(known)
            continue
        wants = request.wants
        able = [devices[i] for i in _candidates(wants, devices)]
        open_to_it = [d for d in able if d.id not in kept]
        if not open_to_it and able and not wants.ids:
            if request.owner is None:  # most of a long line; nothing of it is worked out
                out.append(Wait(request.id, _BEHIND))
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


def early(request: Request, now: float) -> Wait | Never | None:
    """Why the run can't start yet, or ever, whatever the devices are; None if that depends on them.
    """
    if request.after is not None and request.after.state != "completed":
        run, state = request.after.run, request.after.state
        if state is None:
            return Never(request.id, f"run {run}, which it was to follow, does not exist")
        if ended := {"failed": "failed", "stopped": "was stopped", "lost": "is lost"}.get(state):
            return Never(request.id, f"run {run}, which it was to follow, {ended}")
        return Wait(request.id, f"for run {run} to complete")
    if request.begin is not None and request.begin > now:
        return Wait(request.id, f"until {units.time_of_day(request.begin, now)}")
    return None


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
