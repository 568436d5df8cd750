"""Decides whether a device may be taken, and says why not. Pure.

A device is free if nobody uses it, nothing is wrong with it, and both are known. The first of
these states that applies is the answer:

- leased: another run of gpu-panel holds it;
- unhealthy: it can't be read or used, its memory has uncorrected errors, or the hardware holds its
  clocks down (heat, power);
- busy: a process is on it (even one of another container, whose owner can't be seen here), at
  least `MEMORY` bytes of its memory are used, or it was used at `UTILIZATION` or above in one of
  the last `readings` samples;
- unknown: something of this could not be read, its UUID is not known, or there are fewer than
  `readings` samples;
- free.

A device that a person names need not be free in this sense (a desktop's only GPU may draw its
screen), but nobody else may compute on it: see `in_the_way`.

A slice of a GPU (MIG) reports no utilisation, so processes and memory decide. A GPU that uses the
machine's memory reports none of its own, so processes and utilisation decide. A CPU slot is shared
with everything on the machine anyway: it is busy if it was used above `CPU_BUSY` in all of the last
`readings` samples, else free.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_engine.common import units
from gpu_engine.common.errors import TooFew
from gpu_engine.devices.leases import Holder, key
from gpu_engine.devices.records import HARDWARE_REASONS, Device, DeviceProcess, Sample, Snapshot

State = Literal["free", "busy", "unknown", "unhealthy", "leased"]

READINGS = 3
"""How many samples it takes to call a device free."""
MEMORY = 512 << 20
"""Bytes of used memory from which a device is busy."""
UTILIZATION = 0.10
"""Utilisation from which a device is busy, 0 to 1."""
CPU_BUSY, CPU_SHARED = 0.90, 0.50
"""Utilisation from which a CPU slot is busy, and from which it is said of a free one, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a device may be taken, and the reason in words that a person can act on."""

    state: State
    reason: str

    @property
    def free(self) -> bool:
        """Whether it may be picked for a run."""
        return self.state == "free"


def judge(samples: Sequence[Sample], lease: str | None = None, *, readings: int = READINGS,
          now: float | None = None) -> Availability:
    """Judge one device by its last samples, newest last. `lease`: who holds it, in words. `now`, in
    Unix seconds, is needed to say for how long a process has been running."""
    if lease:
        return Availability("leased", f"held by {lease}")
    if not samples:
        return Availability("unknown", "not read yet")
    last = samples[-1]
    if last.problem:
        return Availability("unhealthy", last.problem)
    if last.device.is_cpu:
        return _judge_cpu(samples[-readings:], readings)
    if last.device.uuid is None:
        # It was lost when the devices were found. Its lease would need the UUID as a name.
        why = "its UUID is not known: search for devices again (in the panel: press c twice)"
        return Availability("unknown", why)
    wrong = _wrong(last)
    if wrong:
        return Availability("unhealthy", "; ".join(wrong))
    if last.processes:
        return Availability("busy", _who(last.processes, now))
    if last.memory_used is not None and last.memory_used >= MEMORY:
        return Availability("busy", f"{units.size(last.memory_used)} of its memory are used")
    newest = [s for s in samples[-readings:] if s.utilization is not None]
    most = max((s.utilization or 0.0 for s in newest), default=None)
    if most is not None and most >= UTILIZATION:
        return Availability("busy", f"something uses {units.share(most)} of it")
    if last.processes is None:
        return Availability("unknown", "the driver does not say which processes are on it")
    if last.memory_used is None and not last.memory_is_hosts:
        return Availability("unknown", "the driver does not say how much of its memory is used")
    if not last.device.is_slice and last.utilization is None:
        return Availability("unknown", "the driver does not say how much it is used")
    seen = len(samples[-readings:]) if last.device.is_slice else len(newest)
    if seen < readings:
        return Availability("unknown", f"only {seen} of the {readings} readings that are needed")
    return Availability("free", "free")


def in_the_way(sample: Sample, *, now: float | None = None) -> str | None:
    """Why a run must not start on a device that a person named, unless they share it on purpose.

    It can't be used, a process computes on it, or at least `MEMORY` bytes of it are used by
    processes that the driver does not name. A program that only draws on a screen is no reason,
    and what is not known is only warned of (see `doubts`). This is checked when a run is planned,
    and again right before its ranks start. Always None for CPU slots.
    """
    if sample.device.is_cpu:
        return None
    if sample.problem:
        return sample.problem
    processes = sample.processes or ()
    computing = [p for p in processes if p.kind != "graphics"]
    if computing:
        return _who(computing, now)
    named = [p.memory for p in processes]
    unnamed = (sample.memory_used or 0) - sum(m or 0 for m in named)
    if None not in named and unnamed >= MEMORY:
        return f"{units.size(unnamed)} of its memory are used, and the driver does not say by what"
    return None


def doubts(sample: Sample) -> tuple[str, ...]:
    """Warnings before a run on a device that a person named."""
    if sample.device.is_cpu or sample.problem:
        return ()
    unknown = () if sample.processes is not None else (
        "the driver does not say which processes are on it, so it may not be free",)
    return (*_wrong(sample), *unknown)


def judge_all(snapshots: Sequence[Snapshot], leases: Mapping[str, Holder], *,
              readings: int = READINGS) -> dict[str, Availability]:
    """Judge every device of the newest snapshot. Returns the answers by device id."""
    found = {}
    for sample in snapshots[-1].samples if snapshots else ():
        device, shots = sample.device, snapshots[-readings:]
        history = [s for s in (shot.of(device.id) for shot in shots) if s is not None]
        holder = leases.get(key(device))
        found[device.id] = judge(history, str(holder) if holder else None, readings=readings,
                                 now=snapshots[-1].taken)
    return found


def usable(freedom: Mapping[str, Availability]) -> list[str]:
    """The ids of those that a run may take now: a CPU slot also if something uses it, as a core can
    be shared."""
    return [name for name, found in freedom.items()
            if found.free or (found.state == "busy" and name.startswith("cpu:"))]


def usable_word(freedom: Mapping[str, Availability]) -> str:
    """What `usable` are in one word: "free", or "usable" if something uses one of them."""
    return "free" if all(freedom[name].free for name in usable(freedom)) else "usable"


class Steady:
    """Tells which devices have been free for some readings in a row: one can be a moment between
    two processes of somebody's script."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def update(self, freedom: Mapping[str, Availability]) -> frozenset[str]:
        """Take in what one look has found, by a device's id or any other key. Returns the keys of
        those that have been free for long enough."""
        self._times = {key: self._times.get(key, 0) + 1
                       for key, found in freedom.items() if found.free}
        return frozenset(k for k, times in self._times.items() if times >= READINGS)


def freest(n: int | None, snapshots: Sequence[Snapshot], leases: Mapping[str, Holder], *,
           free: int | None = None, share: bool = False,
           among: Collection[str] | None = None, room: bool = False) -> list[Device]:
    """Choose the `n` devices to take; returns them in the machine's order. None: all that are free
    of the model of which most are.

    free: only those with so many bytes of free memory. share: with `free`, those will do that are
    not free but have the memory; the most memory first. among: the ids of those that will do,
    whoever uses them. room: if too few are free, those will do, too, whose runs make room for
    others (run.give_way), of who began last first.

    Only free devices are chosen: cards of one model if `n` of one are free (as all ranks wait for
    the slowest), whole GPUs before MIG slices and never both, more memory first; then the least
    used memory in steps of 64 MiB, the least utilisation, the lowest index. Busy CPU slots are
    taken last, but they are taken: a core can be shared. Raises `TooFew`, which says who holds
    what, if there are not enough.
    """
    states = judge_all(snapshots, leases)
    newest = snapshots[-1].samples if snapshots else ()
    order = {s.device.id: i for i, s in enumerate(newest)}
    among = usable(states) if among is None else among
    able = [s for s in newest if s.device.id in among]
    if free is not None:
        if share:
            able += [s for s in newest if s.problem is None and s not in able]
        able = [s for s in able if (free_memory(s) or 0) >= free]
    # All of the most frequent model and no other: ranks on unlike cards wait for the slowest.
    if n is None:
        whole = [s for s in able if not s.device.is_slice]
        n = max(Counter(map(_model, whole or able)).values(), default=1)
    since = dict[str, float]()
    if room and len(able) < n:
        since = {s.device.id: holder.since or 0.0 for s in newest
                 if (holder := leases.get(key(s.device))) is not None and holder.makes_room
                 and not (s.device.is_cpu or s.problem or s in able)
                 and (free or 0) <= (s.device.memory_total or s.memory_total or 0)}
        able += [s for s in newest if s.device.id in since]
    if len(able) < n:
        raise TooFew(_too_few(n, newest, states, free), "devices.pick", n, "--queue")
    able = unmixed(able, n)
    if len(able) < n:
        raise TooFew(_too_few(n, newest, states) + "; whole GPUs and MIG slices are not "
                     "used together, as all ranks would wait for the slice", "devices.pick", n)

    def load(sample: Sample) -> tuple[object, ...]:
        cpu, share = sample.device.is_cpu, sample.utilization or 0.0
        # In steps of 64 MiB, or a driver's few MiB of difference would decide and not the index.
        used = 0 if cpu else (sample.memory_used or 0) >> 26
        return (not states[sample.device.id].free, -since.get(sample.device.id, 0.0), used,
                round(share, 1) if cpu else share, order[sample.device.id])

    enough = [model for model, count in Counter(map(_model, able)).items() if count >= n]
    if enough:
        most = max(enough, key=lambda model: model[1])
        able = sorted((s for s in able if _model(s) == most), key=load)
    else:
        # No model has enough: of a mix, the larger memory, as the smallest limits the batch of all.
        able.sort(key=lambda s: (s.device.id in since, -_model(s)[1]))
    return sorted((s.device for s in able[:n]), key=lambda d: order[d.id])


def unmixed(able: Sequence[Sample], n: int) -> list[Sample]:
    """The samples to choose `n` from: those of whole GPUs (or CPU slots); those of MIG slices if
    there are enough of them but not of whole GPUs. If there are enough of neither, the larger
    group."""
    slices = [s for s in able if s.device.is_slice]
    whole = [s for s in able if not s.device.is_slice]
    return whole if len(whole) >= min(n, len(slices)) and whole else slices


def _wrong(sample: Sample) -> tuple[str, ...]:
    """What is wrong with the hardware."""
    slowed = sample.throttle or ()
    return (*sample.health, *(t for t in slowed if t in HARDWARE_REASONS))


def _judge_cpu(samples: Sequence[Sample], readings: int) -> Availability:
    shares = [s.utilization for s in samples if s.utilization is not None]
    # One busy sample does not count: any program's start keeps a core busy for a moment.
    if len(shares) >= readings and min(shares) >= CPU_BUSY:
        return Availability("busy", f"others use {units.share(min(shares))} of it")
    shared = bool(shares) and shares[-1] >= CPU_SHARED
    return Availability("free", "used by others too" if shared else "free")


def _model(sample: Sample) -> tuple[str, int]:
    """The model, and its memory: devices of one model are equally fast."""
    device = sample.device
    name = device.name.rsplit(" ", 1)[0] if device.is_slice else device.name
    return "cpu" if device.is_cpu else name, device.memory_total or 0


def free_memory(sample: Sample) -> int | None:
    """Bytes of the device's memory that nobody uses; None if that is not known."""
    total = sample.device.memory_total or sample.memory_total
    return None if total is None or sample.memory_used is None else total - sample.memory_used


def _too_few(n: int, newest: Sequence[Sample], states: Mapping[str, Availability],
             least: int | None = None) -> str:
    able = usable(states)
    free = len(able)
    text = (f"{n} {'device is' if n == 1 else 'devices are'} needed and "
            f"{free or 'none'} {'are' if free > 1 else 'is'} free")
    why = [f"{s.device.label}: {states[s.device.id].reason}" for s in newest
           if s.device.id not in able]
    if least is not None:
        text = f"{n} with {units.size(least)} of free memory are needed"
        why += [f"{s.device.label}: {units.size(free_memory(s) or 0)} of it are free"
                for s in newest if s.device.id in able and (free_memory(s) or 0) < least]
    return "; ".join([text, *why])


def _who(processes: Sequence[DeviceProcess], now: float | None) -> str:
    """The largest process, "alice · python train.py · 70.0 GiB · 3 days", and how many more there
    are."""
    first = max(processes, key=lambda p: p.memory or 0)
    if not first.visible:
        parts = [f"pid {first.pid}, which can't be seen from here (in a container?)"]
    else:
        who = first.user or f"pid {first.pid}"
        parts = [(f"run {first.run} of {who}" if first.run else who)
                 + (f" in {first.container}" if first.container else "")]
        if first.command:
            parts.append(first.command if len(first.command) <= 60 else first.command[:59] + "…")
    if first.memory is not None:
        parts.append(units.size(first.memory))
    if first.started is not None:
        since = (now if now is not None else time.time()) - first.started
        parts.append(units.ago(since).removesuffix(" ago"))
    text = " · ".join(parts)
    return f"{text} and {len(processes) - 1} more" if len(processes) > 1 else text
