"""The rule of the line: who waits before whom, whether a run starts now and on which devices, and
what it waits for otherwise. Pure.

Each run ahead either starts, or keeps all devices that it could use from those behind it: so a
later run starts first only on devices that the earlier ones can't use at all, and delays none of
them. A run whose time has not come, or that follows another run, does not stand in the line yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_engine.common import units
from gpu_engine.devices.records import Device
from gpu_engine.runs.waiting import BEHIND, Entry, Wants


@dataclass(frozen=True, slots=True)
class When:
    """When a waiting run may start, and before which others."""

    after: str | None = None
    """The id of the run that has to complete first."""
    begin: float | None = None
    """Unix seconds."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device, as it is now."""

    device: Device
    why: str = ""
    """What keeps it from being free, to follow its label: "is held by run 3f2a"; "" if it is."""
    usable: bool = True
    """It works, so that a run could share it."""
    memory: int | None = None
    """Bytes of its memory that are free; None: not known."""


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


@dataclass(frozen=True, slots=True)
class GivesWay:
    """A run that trains and makes room for others."""

    run: object
    """By what the caller knows it: its id alone is another user's too."""
    devices: tuple[str, ...]
    """Those that it has for itself."""
    since: float
    """Unix seconds."""


def in_turn(owners: Iterable[tuple[Sequence[Request], Iterable[str]]]) -> list[Request]:
    """The line of all users: everybody's first run, who came first first, then everybody's second.
    `owners`: of each the runs in their own order, and the names of their files, which begin with
    the time of submission. So whoever queues a hundred runs, or moves some of them, does not come
    between others and their first. Those that give way stand behind all others."""
    placed: list[tuple[bool, int, str, Request]] = []
    for runs, names in owners:
        files = sorted(names)
        placed += [(run.wants.give_way, k, files[k] if k < len(files) else "~", run)
                   for k, run in enumerate(runs)]
    return [run for *_, run in sorted(placed, key=lambda place: place[:3])]


def early(entry: Entry | When, first: str | None, now: float) -> tuple[str, bool] | None:
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
    kept = kept_for(ahead, devices, choose=choose)
    able, ready, taken = _could(mine.wants, devices, kept, choose)
    return Start(tuple(taken)) if taken is not None else Wait(_why(mine.wants, able, ready, kept))


def kept_for(line: Sequence[Request], devices: Mapping[str, DeviceNow], *,
             choose: Choose) -> dict[str, Request]:
    """The devices that nobody behind `line` gets, and the run that could use each, or starts on
    it."""
    kept = dict[str, Request]()
    for request in line:
        wants = request.wants
        able, _, taken = _could(wants, devices, kept, choose)
        if len(able) < wants.count or not (wants.ids or wants.count):
            continue  # this machine will not have so many
        for i in able if taken is None else taken:
            kept.setdefault(i, request)
    return kept


def make_room(line: Sequence[Request], giving: Sequence[GivesWay],
              devices: Mapping[str, DeviceNow]) -> dict[object, Request]:
    """Which of the runs `giving` make room now, and each for whom. `line`: the runs that wait and
    don't give way. As few leave as let the first of the line start that can't without; who began
    last goes first. One that could not start even then keeps what it could use, as in the line."""
    now, kept, leaving = dict(devices), dict[str, Request](), dict[object, Request]()
    held = {i for run in giving for i in run.devices}

    def first(count: int, ids: Sequence[str]) -> Sequence[str]:
        # What is free as it is comes first, so that nobody leaves for nothing.
        return sorted(ids, key=held.__contains__)[:count]

    for request in line:
        wants, freed = request.wants, dict(now)
        able, _, taken = _could(wants, freed, kept, first)
        if len(able) < wants.count or not (wants.ids or wants.count):
            continue  # this machine will not have so many
        gone = list[GivesWay]()
        for run in sorted(giving, key=lambda run: -run.since):
            if taken is None and run.run not in leaving:
                gone.append(run)
                freed |= {i: replace(freed[i], why="") for i in run.devices if i in freed}
                able, _, taken = _could(wants, freed, kept, first)
        for i in able if taken is None else taken:
            kept.setdefault(i, request)
        for run in gone:
            if taken is not None and {*run.devices} & {*taken}:
                leaving[run.run] = request
                now |= {i: freed[i] for i in run.devices if i in freed}
    return leaving


def surely_behind(mine: Wants, ours: Mapping[str, Sequence[str]],
                  other: Wants, theirs: Mapping[str, Sequence[str]]) -> bool:
    """Whether, whatever other machines say, nothing of them is left for `mine` as long as `other`
    waits ahead of it: that could use all that `mine` could, or both need the same device. `ours`,
    `theirs`: the machines that each means, and the devices that it names of them; none: all."""
    if mine.count and other.count:
        return (ours.keys() <= theirs.keys() and other.count <= mine.count
                and other.cpu in (None, mine.cpu) and (other.free or 0) <= (mine.free or 0))
    return not (mine.count or other.count) and any(
        host in theirs and not (ids and theirs[host] and {*ids}.isdisjoint(theirs[host]))
        for host, ids in ours.items())


def _could(wants: Wants, devices: Mapping[str, DeviceNow], kept: Mapping[str, Request],
           choose: Choose) -> tuple[dict[str, DeviceNow], list[str], Sequence[str] | None]:
    """The devices that a run could use, which of them it could now, and those that it takes."""
    able = {i: d for i, d in devices.items() if _able(wants, d)}
    ready = [i for i, d in able.items() if i not in kept and _ready(wants, d)]
    if wants.ids:
        return able, ready, wants.ids if set(wants.ids) <= {*ready} else None
    return able, ready, choose(wants.count, ready) if 0 < wants.count <= len(ready) else None


def _able(wants: Wants, now: DeviceNow) -> bool:
    """Whether the run could use the device if it were free."""
    device = now.device
    if wants.ids:
        return device.id in wants.ids
    return device.is_cpu == wants.cpu and (not wants.within or device.id in wants.within) \
        and (wants.free or 0) <= (device.memory_total or wants.free or 0)


def _ready(wants: Wants, now: DeviceNow) -> bool:
    if wants.free is not None and (now.memory is None or now.memory < wants.free):
        return False
    return now.usable if wants.share else not now.why


def _who(request: Request) -> str:
    what = "run" if request.id else "hold"  # which has no id
    return f"a {what} of {request.owner}" if request.owner \
        else f"run {request.id}" if request.id else "a hold"


def _why(wants: Wants, able: Mapping[str, DeviceNow], ready: Sequence[str],
         kept: Mapping[str, Request]) -> str:
    if missing := [i for i in wants.ids if i not in able]:
        return f"for {missing[0]}, which this machine does not have now"
    if wants.ids:
        parts = []
        for i in [i for i in wants.ids if i not in ready]:
            before = kept.get(i)
            parts.append(f"{able[i].device.label}, " + (
                f"which {able[i].why}" if before is None else "for which "
                f"{_who(before)} comes first"))
        return "for " + "; ".join(parts)
    if able and able.keys() <= kept.keys():
        return BEHIND
    if len(able) < wants.count:
        return f"for {wants.text}; this machine has {len(able)}"
    if len(ready) >= wants.count:
        return f"for {wants.text} that go together"
    return f"for {wants.text}: {len(ready) or 'none'} of {len(able)} now"
