"""What the engine says of a draft: its problems, or what would run; and which of its devices are
not free."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_engine import __version__
from gpu_engine.code import snapshot
from gpu_engine.common import paths
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Device, Inventory, Snapshot
from gpu_engine.interpreters import choose
from gpu_engine.launching import preflight
from gpu_engine.launching.launcher import Prepared
from gpu_engine.places import slurm
from gpu_engine.places.verbs import meant_by
from gpu_engine.plan import without_effect
from gpu_engine.plan.records import RUN_DIR, Interpreter, LaunchPlan
from gpu_engine.remote.reach.hosts import LOCAL, Host
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.remote.reach.watcher import HostSeen
from gpu_engine.remote.run import nodes
from gpu_engine.runs import disk_room
from gpu_engine.slurm import submit
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_panel.launch import row_keys
from gpu_panel.launch.device_source import DeviceSource


@dataclass(frozen=True, slots=True)
class Review:
    """The engine's answer to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """What Launch starts; None if there is a problem, or hosts have to be asked first."""
    unusable: bool = False
    """Whether a device can't be used at all, so that sharing it would not help."""
    over_hosts: LaunchPlan | None = None
    """What would run on hosts, by what was seen of them; None if the run uses no hosts."""

    script: str | None = None
    """The batch script of a run that Slurm is to start; None: it is for no Slurm."""
    interpreter: Interpreter | None = None
    """What a task's ranks run in here; None: nothing has torch, not known, or an own command."""

    @property
    def plan(self) -> LaunchPlan | None:
        """What would run; None if there is a problem."""
        return self.prepared.plan if self.prepared else self.over_hosts


@dataclass(frozen=True, slots=True)
class BusyDevice:
    """A ticked device that is not free."""

    device: Device
    state: str
    """Its name in `availability`."""
    reason: str
    host: str | None = None
    """None: this machine."""

    @property
    def can_be_shared(self) -> bool:
        """Whether the run could use it beside others, which needs the spec's permission."""
        return self.state in ("leased", "busy") and not self.device.is_cpu

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host is not None else ""
        return f"{self.device.label}{where}: {self.reason}"


def review(data: dict[str, Any], inventory: Inventory,
           base: tuple[str, RunSpec] | None, shot: Snapshot | None = None,
           hosts: Sequence[HostSeen] = ()) -> Review:
    """Review a draft's `data`. Blocks while it checks, for example, the port and the task.

    `base`: the preset's name and spec that the shown command builds on. `shot`: the newest snapshot
    of the devices; a lost device is refused here, one in use only when Launch is pressed. `hosts`:
    what is known of other machines.
    """
    unusable: list[Problem] = []
    there: Interpreter | None = None
    full = disk_room.problem(paths.runs_folder())
    if full is not None:  # no change in the form would help
        return Review((full,))
    try:
        spec = from_dict(data)
        place = meant_by(spec)
        if place is slurm:
            return Review((), place.prepare(spec, base=base),
                          script=submit.script_of(spec, RUN_DIR))
        if spec.devices.hosts is not None:
            return _over_hosts(spec, inventory, base, hosts)
        taken = choose.of_spec(spec)
        there = taken.record() if taken is not None else None
        unusable = preflight.unusable(spec, inventory, shot) if shot is not None else []
        prepared = place.prepare(spec, inventory=inventory, base=base)
        return Review(tuple(unusable), None if unusable else prepared, bool(unusable),
                      interpreter=there)
    except SpecError as err:
        # For a device that can't be used, it does not matter who holds it.
        known = [(p.key, p.value) for p in unusable]
        others = [p for p in err.problems if (p.key, p.value) not in known]
        return Review((*unusable, *others), unusable=bool(unusable), interpreter=there)
    except UserError as err:
        return Review((Problem("", None, str(err)),))


def _over_hosts(spec: RunSpec, inventory: Inventory, base: tuple[str, RunSpec] | None,
                hosts: Sequence[HostSeen]) -> Review:
    """The plan by what was seen of the hosts, none of which is asked now. Raises SpecError."""
    known = {seen.host.name: seen for seen in hosts}
    machines: list[nodes.Machine] = []
    problems: list[Problem] = []
    for entry in nodes.entries(spec):
        seen = known.get(entry.host)
        if entry.host == LOCAL:
            machines.append(nodes.Machine(Host(LOCAL), _here(), inventory))
        elif seen is None or seen.welcome is None or seen.inventory is None \
                or seen.state != "seen":
            why = seen.reason if seen is not None and seen.reason else "it has not answered yet"
            problems.append(Problem("devices.hosts", entry.host, why))
        else:
            machines.append(nodes.Machine(seen.host, seen.welcome, seen.inventory))
    if problems:
        return Review(tuple(problems))
    address = next(iter(machines[0].welcome.addresses), "127.0.0.1")
    port = spec.parallel.master_port or (MEETING_PORT if len(machines) > 1 else None)
    _, plan = nodes.spread(spec, machines, address=address, port=port, base=base)
    if spec.run.sync != "none":
        plan = replace(plan, code=snapshot.describe(Path.cwd()))
    plan = replace(plan, not_compared=nodes.not_compared(spec),
                   warnings=without_effect.told(spec))
    return Review((), over_hosts=plan)


def _here() -> Welcome:
    """This machine, as far as a plan asks."""
    return Welcome(__version__, sys.executable, "", "", "", str(paths.home()), "", None,
                   None, "", 0.0, interpreter=choose.current().python)


async def busy_devices(source: DeviceSource, keys: Sequence[str]) -> dict[str, BusyDevice]:
    """The ticked devices that are not free now, by the key of their row; on a host, by what it said
    last. Those that have not been sampled long enough to be judged are left out. Raises OSError if
    the leases can't be read."""
    await source.judge()
    machines = {machine.host: machine for machine in source.machines}
    found: dict[str, BusyDevice] = {}
    for key in keys:
        host, name = row_keys.split(key)
        machine = machines.get(host)
        device = machine.find(name) if machine else None
        judged = (machine.freedom or {}).get(device.id) if machine and device else None
        if device is None or judged is None:
            continue
        # Any program can keep cores busy for a moment, so only a run of ours counts on a CPU slot.
        fine = ("free", "unknown", "busy") if device.is_cpu else ("free", "unknown")
        if judged.state not in fine:
            found[key if host is not None else device.id] = BusyDevice(
                device, judged.state, judged.reason, host)
    return found


def sharing_would_help(review: Review, taken: Mapping[str, BusyDevice]) -> bool:
    """Whether the only problems are ticked devices that other runs hold."""
    held = [name for name, device in taken.items() if device.state == "leased"]
    return not review.unusable and all(p.key == "devices.ids" and p.value in held
                                       for p in review.problems)
