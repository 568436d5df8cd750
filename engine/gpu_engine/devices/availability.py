"""Which device may be taken, and why not. Pure.

A device is free if nobody uses it and nothing is wrong with it. If any of that is not known, it is
not free. The first of these that applies is the answer:

- leased: another run of ours holds it;
- unhealthy: it can't be read or used, its memory has errors that nothing corrected, or the
  hardware holds its clocks down (heat, power);
- busy: any process is on it (of another container too, whose owner nobody here can see), its
  used memory is at `memory` or above, or it was used at `utilization` or above in one of the
  last `looks` looks;
- unknown: something of this could not be read, its UUID is not known, or it was seen less
  than `looks` times;
- free.

A device that a person names need not be free by all of this (a screen is on many a desktop's only
GPU), but nobody else may train on it: see `in_the_way`.

A slice of a GPU (MIG) has no utilisation by nature: processes and memory decide. A GPU that uses
the machine's memory has none of its own: processes and utilisation decide. A CPU slot is shared
by everything on the machine anyway: it is busy above `CPU_BUSY` in all of the last `looks` looks,
and else free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_engine.common.errors import UserError
from gpu_engine.devices.leases import Holder, key
from gpu_engine.devices.records import (
    HARDWARE_REASONS,
    Device,
    DeviceProcess,
    Sample,
    Snapshot,
)

State = Literal["free", "busy", "unknown", "unhealthy", "leased"]

LOOKS = 3
MEMORY = 512 << 20
UTILIZATION = 0.10
CPU_BUSY = 0.90


@dataclass(frozen=True, slots=True)
class Freedom:
    """Whether a device may be taken, and the reason in words a person can act on."""

    state: State
    reason: str

    @property
    def free(self) -> bool:
        """Whether it may be picked for somebody."""
        return self.state == "free"


def judge(
    samples: Sequence[Sample],
    lease: str | None = None,
    *,
    looks: int = LOOKS,
    memory: int = MEMORY,
    utilization: float = UTILIZATION,
    now: float | None = None,
) -> Freedom:
    """Judge one device by its last looks (newest last). `lease`: who holds it, in words.

    `memory` in bytes, `utilization` as a share; `now` in Unix seconds says how long a process
    has been on it.
    """
    if lease:
        return Freedom("leased", f"held by {lease}")
    if not samples:
        return Freedom("unknown", "not looked at yet")
    last = samples[-1]
    if last.problem:
        return Freedom("unhealthy", last.problem)
    if last.device.is_cpu:
        return _judge_cpu(samples[-looks:], looks)
    if last.device.uuid is None:
        # It was lost when the devices were found. A lease is named after the UUID.
        why = "its UUID is not known: look for devices anew (in the panel: c twice)"
        return Freedom("unknown", why)
    wrong = _wrong(last)
    if wrong:
        return Freedom("unhealthy", "; ".join(wrong))
    if last.processes:
        return Freedom("busy", _who(last.processes, now))
    if last.memory_used is not None and last.memory_used >= memory:
        return Freedom("busy", f"{_size(last.memory_used)} of its memory are used")
    newest = [s for s in samples[-looks:] if s.utilization is not None]
    most = max((s.utilization or 0.0 for s in newest), default=None)
    if most is not None and most >= utilization:
        return Freedom("busy", f"{most:.0%} used in the last {len(newest)} looks")
    if last.processes is None:
        return Freedom("unknown", "the driver does not say which processes are on it")
    if last.memory_used is None and not last.memory_is_hosts:
        return Freedom("unknown", "the driver does not say how much of its memory is used")
    if not last.device.is_slice and last.utilization is None:
        return Freedom("unknown", "the driver does not say how much it is used")
    seen = len(samples[-looks:]) if last.device.is_slice else len(newest)
    if seen < looks:
        return Freedom("unknown", f"seen {seen} of the {looks} times that it takes to be sure")
    return Freedom("free", "free")


def in_the_way(
    sample: Sample, *, memory: int = MEMORY, now: float | None = None
) -> str | None:
    """Why nothing may start on a device that a person named, unless they share it on purpose.

    The reasons: it can't be used, a process computes on it, or `memory` bytes of it are used by
    processes that the driver does not name. Programs that only draw on a screen are no reason,
    and what is not known is left to the person (see `doubts`). Asked when a run is planned, and
    again right before its ranks start. For CPU slots always None.
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
    if None not in named and unnamed >= memory:
        return f"{_size(unnamed)} of its memory are used, and the driver does not say by whom"
    return None


def doubts(sample: Sample) -> tuple[str, ...]:
    """Warnings for a person before a run on a device that they named."""
    if sample.device.is_cpu or sample.problem:
        return ()
    unknown = () if sample.processes is not None else (
        "the driver does not say which processes are on it, so nobody knows whether it is free",
    )
    return (*_wrong(sample), *unknown)


def judge_all(
    snapshots: Sequence[Snapshot], leases: Mapping[str, Holder], *, looks: int = LOOKS
) -> dict[str, Freedom]:
    """`judge` for every device of the newest snapshot, by device id."""
    found = {}
    for sample in snapshots[-1].samples if snapshots else ():
        history = _history(snapshots[-looks:], sample.device)
        holder = leases.get(key(sample.device))
        found[sample.device.id] = judge(
            history, str(holder) if holder else None, looks=looks, now=snapshots[-1].taken
        )
    return found


def freest(
    n: int,
    snapshots: Sequence[Snapshot],
    leases: Mapping[str, Holder],
    *,
    looks: int = LOOKS,
) -> list[Device]:
    """The `n` devices to take, in the machine's order. Raises `UserError` with who holds what.

    Only free ones. Of these, cards of one model where `n` of one are free (ranks wait for the
    slowest), whole GPUs before MIG slices and never beside them, more memory first; then the
    least used memory in steps of 64 MiB, the least use, the lowest index. CPU slots under load
    are taken last, and still taken: a core can be shared.
    """
    states = judge_all(snapshots, leases, looks=looks)
    newest = snapshots[-1].samples if snapshots else ()
    order = {s.device.id: i for i, s in enumerate(newest)}
    able = [s for s in newest if states[s.device.id].free]
    able += [s for s in newest if s.device.is_cpu and states[s.device.id].state == "busy"]
    if len(able) < n:
        raise UserError(_too_few(n, newest, states))
    able = unmixed(able, n)
    if len(able) < n:
        raise UserError(_too_few(n, newest, states) + "; a whole GPU and a MIG slice are not "
                        "taken together, as each rank would wait for the slice")
    by_model: dict[tuple[str, int], list[Sample]] = {}
    for sample in able:
        device = sample.device
        by_model.setdefault((_model(device), device.memory_total or 0), []).append(sample)
    enough = [(model, group) for model, group in by_model.items() if len(group) >= n]
    if enough:
        _, able = min(enough, key=lambda e: (e[1][0].device.is_slice, -e[0][1]))
    else:
        able.sort(key=lambda s: (s.device.is_slice, -(s.device.memory_total or 0)))
    if len(by_model) == 1 or enough:
        able.sort(key=lambda s: _load(s, states[s.device.id], order[s.device.id]))
    return sorted((s.device for s in able[:n]), key=lambda d: order[d.id])


def unmixed(able: Sequence[Sample], n: int) -> list[Sample]:
    """Those to choose `n` of: whole GPUs (or CPU slots), or MIG slices where these are enough and
    the whole ones are not. Where neither are enough, of whichever there are more."""
    slices = [s for s in able if s.device.is_slice]
    whole = [s for s in able if not s.device.is_slice]
    return whole if len(whole) >= min(n, len(slices)) and whole else slices


def _wrong(sample: Sample) -> tuple[str, ...]:
    """What is wrong with the hardware."""
    slowed = sample.throttle or ()
    return (*sample.health, *(t for t in slowed if t in HARDWARE_REASONS))


def _judge_cpu(samples: Sequence[Sample], looks: int) -> Freedom:
    shares = [s.utilization for s in samples if s.utilization is not None]
    # One look is no load: a program's own start keeps a core busy for a moment.
    if len(shares) >= looks and min(shares) >= CPU_BUSY:
        return Freedom("busy", f"{min(shares):.0%} used in the last {len(shares)} looks")
    return Freedom("free", "free")


def _history(snapshots: Sequence[Snapshot], device: Device) -> list[Sample]:
    return [s for s in (snapshot.of(device.id) for snapshot in snapshots) if s is not None]


def _load(sample: Sample, freedom: Freedom, order: int) -> tuple[object, ...]:
    used = (sample.memory_used or 0) >> 26 if not sample.device.is_cpu else 0
    share = (
        round(sample.utilization or 0.0, 1)
        if sample.device.is_cpu
        else (sample.utilization or 0.0)
    )
    return (freedom.state != "free", used, share, order)


def _model(device: Device) -> str:
    """What two devices have in common when they are equally fast."""
    if device.is_slice:
        return device.name.rsplit(" ", 1)[0]
    return "cpu" if device.is_cpu else device.name


def _too_few(n: int, newest: Sequence[Sample], states: Mapping[str, Freedom]) -> str:
    free = sum(f.free for f in states.values())
    text = (
        f"{n} {'device is' if n == 1 else 'devices are'} asked for and "
        f"{free or 'none'} {'are' if free > 1 else 'is'} free"
    )
    why = [
        f"{s.device.label}: {states[s.device.id].reason}"
        for s in newest
        if not states[s.device.id].free
    ]
    return "; ".join([text, *why])


def _who(processes: Sequence[DeviceProcess], now: float | None) -> str:
    """The largest process and how many more: "alice · python train.py · 70.0 GiB · 3 days"."""
    first = max(processes, key=lambda p: p.memory or 0)
    if not first.visible:
        parts = [f"pid {first.pid}, which can't be seen from here (in a container?)"]
    else:
        parts = [first.user or f"pid {first.pid}"]
        if first.command:
            parts.append(first.command if len(first.command) <= 60 else first.command[:59] + "…")
    if first.memory is not None:
        parts.append(_size(first.memory))
    if first.started is not None:
        parts.append(_duration((now if now is not None else time.time()) - first.started))
    text = " · ".join(parts)
    return f"{text} and {len(processes) - 1} more" if len(processes) > 1 else text


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def _duration(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{max(0, int(seconds))} s"
