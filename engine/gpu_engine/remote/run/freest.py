"""Which of several machines a run takes its devices from: the one with most free that has enough.

For a run that starts at once (`resolve`) and for one that waits (`queue/over_hosts.py`), by what
each machine says of its devices while it is watched.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from gpu_engine.common.errors import HostProblem, Problem, SpecError, TooFew
from gpu_engine.common.programs import version
from gpu_engine.devices import availability
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan.check import counted
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.hosts import LOCAL, Host, HostDevices
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.watcher import HostSeen, Watcher
from gpu_engine.remote.run.nodes import Machine, unfit
from gpu_engine.runs.waiting import BEHIND, Wants
from gpu_engine.spec.schema import RunSpec

INTERVAL = 0.3
"""Seconds between two looks."""
PATIENCE = 12.0
"""Seconds after which a machine that has not answered is passed over."""
T = TypeVar("T")
_UNKNOWN = "no machine has answered yet"


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices of one machine, or those that are named of each of several."""

    devices: Mapping[str, tuple[Device, ...]]
    """By the machine's name."""
    of: int
    """How many machines were asked."""
    passed: tuple[str, ...] = ()
    """Why others were passed over: "gpu2 is away: …"."""
    named: bool = False

    @property
    def where(self) -> list[HostDevices]:
        """The entries of `devices.hosts`: gpu1:0,1."""
        return [HostDevices(host, tuple(d.id for d in devices))
                for host, devices in self.devices.items()]

    @property
    def sentence(self) -> str | None:
        """"on gpu1: GPU 0, GPU 1: the freest of 3 machines; gpu2 is away: …"; None: they were
        named."""
        how = f"the freest of {self.of} machines" if self.of > 1 else "the freest"
        on = [f"on {host}: {', '.join(d.label for d in devices)}: {how}"
              for host, devices in self.devices.items()]
        return None if self.named else "; ".join([*on, *self.passed])


def silence(machine: HostSeen) -> str | None:
    """Why nothing is known of its devices now: "gpu2 is away: …"; None: they are."""
    if machine.state == "away":
        return f"{machine.host.name} is away: {machine.reason}"
    if machine.state == "asking" or machine.inventory is None:
        return f"{machine.host.name} has not answered yet"
    return f"{machine.host.name} answers, and has not said how its devices are yet" \
        if machine.snapshot is None else None


def on_cpu(seen: Sequence[HostSeen]) -> bool:
    """Whether CPU slots are meant: no machine that answers has a GPU. This machine's alone do not
    mean that those that are away have none."""
    there = [m for m in seen if m.state == "seen" and m.inventory is not None]
    return bool(there) and all(m.inventory.is_cpu for m in there if m.inventory) and (
        len(there) == len(seen) or any(m.host.name != LOCAL for m in there))


def free_on(machine: HostSeen, *, share: bool = False) -> list[str]:
    """The ids of its devices that a run may take now; `share`: also those that others use."""
    if machine.state != "seen" or machine.snapshot is None:
        return []
    if share:
        return [s.device.id for s in machine.snapshot.samples if s.problem is None]
    return availability.usable(machine.freedom)


def choose(seen: Sequence[HostSeen], spec: RunSpec, *, cpu: bool, behind: bool = False,
           refused: Mapping[str, str] = MappingProxyType({}),
           kept: Mapping[str, Collection[str]] = MappingProxyType({})) -> Choice:
    """Choose `devices.pick` devices, all of one machine; without it those that `devices.hosts`
    names, of all of them. `behind`: what waits on a machine goes first. `refused`: by host why it
    would not start the run just now. `kept`: by host the devices that runs ahead of it get. Raises
    TooFew, which says of each machine what is lacking."""
    d, offers = spec.devices, list[tuple[int, str, list[Device]]]()
    named = {} if d.pick else {e.host: e.ids for e in hosts.parse_all(d.hosts or ())}
    count, free = d.pick or 1, None if d.free_gib is None else int(d.free_gib * (1 << 30))
    passed, lacking = list[str](), list[str]()
    for machine in seen:
        name, inventory, welcome = machine.host.name, machine.inventory, machine.welcome
        if inventory is None or silence(machine):
            passed.append(silence(machine) or "")
        elif inventory.is_cpu != cpu:
            lacking.append(f"{name} has {'GPUs and offers no CPU slots' if cpu else 'no GPU'}")
        elif why := refused.get(name) or (
                welcome and unfit(Machine(machine.host, welcome, inventory), spec)):
            passed.append(f"{name}: {why}")
        elif behind and machine.waiting:
            runs = "a run waits" if machine.waiting == 1 else f"{machine.waiting} runs wait"
            lacking.append(f"{runs} on {name}, and what waits there goes first")
        else:
            ahead = kept.get(name, ())
            able = [i for i in free_on(machine, share=d.share) if i not in ahead]
            rest = f", as {BEHIND[4:]} get {len(ahead)}" if ahead else ""
            if named:
                ids = named[name] or [device.id for device in inventory.devices]
                wanted = [inventory.find(i) for i in ids]
                if all(device is not None and device.id in able for device in wanted):
                    offers.append((count, name, [x for x in wanted if x is not None]))
                else:
                    lacking.append(f"{name}: {_not_free(ids, wanted, machine, able)}{rest}")
                continue
            try:
                offers.append((len(able), name, availability.freest(
                    count, machine.recent[-availability.READINGS:], {}, free=free, share=d.share,
                    among=able)))
            except TooFew:
                lacking.append(f"{name}: {len(able) or 'none'} of {len(inventory.devices)} free"
                               + rest)
    if len(offers) < (len(named) or 1):
        what = f"{count} {'device is' if count == 1 else 'devices are'} needed on one machine"
        raise TooFew("; ".join([what, *lacking, *passed]), "devices.pick", count, "--queue")
    taken = offers if named else [max(offers, key=lambda offer: offer[0])]
    return Choice({name: tuple(devices) for _, name, devices in taken}, len(seen), tuple(passed),
                  bool(named))


def _not_free(names: Sequence[str], wanted: Sequence[Device | None], machine: HostSeen,
              able: Sequence[str]) -> str:
    """"GPU 1 is not free: run 3f2a", "there is no 7"."""
    absent = [name for name, device in zip(names, wanted, strict=True) if device is None]
    if absent:
        return f"there is no {', '.join(absent)}"
    found = {d.label: machine.freedom.get(d.id) for d in wanted
             if d is not None and d.id not in able}
    # One that is free is for a run ahead.
    return ", ".join(f"{label} is not free" + (f": {x.reason}" if x and not x.free else "")
                     for label, x in found.items())


def take(seen: Sequence[HostSeen], spec: RunSpec, plan: Callable[[Choice], T],
         refused: dict[str, str], *, cpu: bool, behind: bool = False,
         kept: Mapping[str, Collection[str]] = MappingProxyType({})) -> tuple[Choice, T]:
    """`choose`, and what `plan` makes of it: of the next machine, as long as it raises HostProblem,
    which `refused` then holds. Raises as `choose` and `plan`."""
    while True:
        choice = choose(seen, spec, cpu=cpu, behind=behind, refused=refused, kept=kept)
        try:
            return choice, plan(choice)
        except HostProblem as err:
            if choice.named or (len(seen) == 1 and not behind):
                raise  # with all that it says
            refused |= {host: err.of(host) for host in choice.devices}


def with_most_free(seen: Sequence[HostSeen]) -> HostSeen | None:
    """The machine with most free devices of the kind that is meant; None: none has any."""
    cpu = on_cpu(seen)
    free = [(len(free_on(m)), m) for m in seen if m.inventory and m.inventory.is_cpu == cpu]
    many, machine = max(free, key=lambda pair: pair[0], default=(0, None))
    return machine if many else None


def settled(seen: Sequence[HostSeen]) -> bool:
    """Whether each machine has said enough to be judged, or can't be asked."""
    return all(m.state == "away" or len(m.recent) >= availability.READINGS for m in seen)


def look(asked: Sequence[Host], each: Callable[[Sequence[HostSeen]], object] = len
         ) -> tuple[HostSeen, ...]:
    """Watch these machines until each has been seen often enough to be judged, or is given up.
    `each` is told of those that are, as soon as they are."""
    with contextlib.closing(Watcher(INTERVAL)) as watcher:
        for host in asked:
            watcher.watch(host)
        end, told = time.monotonic() + PATIENCE, set[str]()
        while True:
            seen, over = watcher.seen, time.monotonic() >= end
            new = [m for m in seen if m.host.name not in told and (over or settled([m]))]
            if new:
                each(new)
            told |= {m.host.name for m in new}
            if len(told) == len(seen):
                return seen
            time.sleep(0.05)


def asked_of(spec: RunSpec) -> tuple[RunSpec, list[Host]]:
    """`spec` with the number of devices that its mode takes, and the machines of which one is
    chosen. Raises SpecError, UserError."""
    spec = counted(spec)
    if spec.devices.pick is None:
        named = ", ".join(spec.devices.hosts or ())
        raise SpecError([Problem("devices.pick", None, f"say how many devices to take on one of "
                                 f"{named} (-n 2)")])
    return spec, hosts.meant_by(spec.devices.hosts or ())


def resolve(spec: RunSpec, plan: Callable[[RunSpec], T], *, only_plan: bool = False
            ) -> tuple[T, str | None, Wants]:
    """`plan` of `spec` on the devices that are chosen now, on a machine that can start it; why
    these; and what they were chosen by. `only_plan`: where too few are free it is the first machine
    that has so many. Raises SpecError, UserError, TooFew, which says of each machine why not."""
    spec, asked = asked_of(spec)
    d, seen = spec.devices, look(asked)
    assert d.pick is not None
    cpu = on_cpu(seen)
    wants = Wants(count=d.pick, free=None if d.free_gib is None else int(d.free_gib * (1 << 30)),
                  share=d.share, cpu=cpu, hosts=tuple(d.hosts or ()))
    try:
        choice, planned = take(seen, spec, lambda c: plan(on_chosen(spec, c)), {}, cpu=cpu)
        return planned, choice.sentence, wants
    except TooFew as err:
        name, inventory = largest(seen)
        if not only_plan or inventory is None or len(inventory.devices) < d.pick:
            raise
        choice = Choice({name: inventory.devices[:d.pick]}, len(seen))
        return plan(on_chosen(spec, choice)), f"it can't start now: {err}", wants


def largest(seen: Sequence[HostSeen]) -> tuple[str, Inventory | None]:
    """The machine with most devices of the kind that is meant, and these; None: none answers that
    has any."""
    cpu = on_cpu(seen)
    there = [(m.host.name, m.inventory) for m in seen
             if m.inventory is not None and m.inventory.is_cpu == cpu]
    return max(there, key=lambda pair: len(pair[1].devices), default=("", None))


def expected(seen: Sequence[HostSeen], count: int) -> Inventory:
    """The devices by which a run is checked that waits for `count` of one of these machines: those
    of the largest that answers. As one that does not answer now may have enough, so many are
    supposed; where nobody answers (`unknown`), they are GPUs."""
    found = largest(seen)[1] or Inventory((), "nvml", problem=_UNKNOWN)
    kind = found.devices[0] if found.devices else Device("0", "gpu", "GPU")
    more = range(len(found.devices), count) if any(m.snapshot is None or m.state != "seen"
                                                   for m in seen) else ()
    return replace(found, devices=(*found.devices, *(
        replace(kind, id=f"cpu:{n}" if kind.is_cpu else str(n), index=n, uuid=None)
        for n in more)))


def unknown(inventory: Inventory) -> bool:
    """Whether `expected` supposes even the kind of these devices."""
    return inventory.problem == _UNKNOWN


def on_chosen(spec: RunSpec, choice: Choice) -> RunSpec:
    """`spec` on these devices."""
    return replace(spec, devices=replace(spec.devices, hosts=[*map(str, choice.where)], ids=None,
                                         pick=None, free_gib=None))


UNSEEN = Welcome(version(), sys.executable, "", "", "", "", "", None, None, "", 0.0)
"""A machine of which nothing is known."""


def machines(spec: RunSpec, seen: Sequence[HostSeen]) -> list[Machine]:
    """The hosts that `spec` names, in its order, as they were seen: what does not answer has the
    devices that are named of it."""
    known, found = {m.host.name: m for m in seen}, list[Machine]()
    for entry in hosts.parse_all(spec.devices.hosts or ()):
        machine = known[entry.host]
        cpu = bool(entry.ids) and entry.ids[0].startswith("cpu:")
        supposed = Inventory(tuple(Device(i, "cpu" if cpu else "gpu", i) for i in entry.ids),
                             "cpu" if cpu else "nvml")
        found.append(Machine(machine.host, machine.welcome or UNSEEN,
                             machine.inventory or supposed))
    return found
