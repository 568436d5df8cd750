"""A spec with `devices.hosts` → what each host is told, and the plan of the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common.errors import HostProblem, Problem, SpecError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.build import engine_line
from gpu_engine.plan.build import plan as plan_of
from gpu_engine.plan.records import LaunchPlan, Process
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import HostDevices, parse_all
from gpu_engine.spec.schema import RunSpec

_HOSTS = "devices.hosts"


@dataclass(frozen=True, slots=True)
class Machine:
    """A host that has answered."""

    host: Host
    welcome: Welcome
    inventory: Inventory
    skew: float = 0.0
    """Seconds that its clock is at least ahead of ours; negative: behind."""
    opened: float = 0.0
    """Seconds until our program there had begun."""

    @property
    def name(self) -> str:
        """What the person calls it."""
        return self.host.name


@dataclass(frozen=True, slots=True)
class Node:
    """One host's part of a run."""

    machine: Machine
    number: int
    spec: RunSpec
    """As it would be typed there."""
    plan: LaunchPlan
    """What it will start."""

    @property
    def name(self) -> str:
        return self.machine.name


def entries(spec: RunSpec) -> tuple[HostDevices, ...]:
    """The hosts of a spec, in their order. Raises SpecError where there are none."""
    if not spec.devices.hosts:
        raise SpecError([Problem(_HOSTS, [], "name at least one host, as in gpu1:0,1")])
    return parse_all(spec.devices.hosts)


def whole(spec: RunSpec) -> RunSpec:
    """The spec with the mode that follows from its hosts: several are a node each; one is no
    reason for several nodes. Raises SpecError."""
    count = len(entries(spec))
    name = modes.over_hosts(count, spec.parallel.mode)
    return replace(spec, parallel=replace(spec.parallel, mode=name, nodes=count, node_rank=0))


def spread(spec: RunSpec, machines: Sequence[Machine], *, address: str, port: int | None,
           base: tuple[str, RunSpec] | None = None) -> tuple[tuple[Node, ...], LaunchPlan]:
    """What each of `machines`, in the order of the spec's hosts, is told, and the plan of the
    whole run. They meet at `address` and `port`. Raises SpecError with all that does not fit."""
    spec = whole(spec)
    asked = entries(spec)
    chosen = [entry.ids or tuple(d.id for d in machine.inventory.devices)
              for entry, machine in zip(asked, machines, strict=True)]
    _same_kind(spec, chosen, machines)
    several = len(asked) > 1
    nodes = []
    for number, (machine, ids) in enumerate(zip(machines, chosen, strict=True)):
        place = spec.parallel
        if several:
            place = replace(place, node_rank=number, master_addr=address, master_port=port,
                            node_devices=[len(i) for i in chosen],
                            launcher="direct" if place.launcher == "auto" else place.launcher)
        mine = replace(
            spec, parallel=place, devices=replace(spec.devices, ids=list(ids), pick=None,
                                                  hosts=None),
            run=replace(spec.run, sync="none"),
            # All nodes begin again together or none does.
            train=replace(spec.train, restarts=0) if several else spec.train)
        try:
            plan = plan_of(mine, machine.inventory, python=machine.welcome.interpreter
                           or machine.welcome.python)
        except SpecError as err:
            problems = [on(machine.name, p) if p.key.startswith("devices") else p
                        for p in err.problems]
            # What is not about its devices is wrong on any machine.
            kind = HostProblem if all(p.key == _HOSTS for p in problems) else SpecError
            raise kind(problems) from None
        nodes.append(Node(machine, number, mine, plan))
    return tuple(nodes), _joined(spec, nodes, base)


def inventory_of(machines: Sequence[Machine]) -> Inventory:
    """All devices of several machines, each id with its host's name before it."""
    devices = tuple(replace(d, id=f"{m.name}:{d.id}")
                    for m in machines for d in m.inventory.devices)
    return Inventory(devices, machines[0].inventory.source)


def _same_kind(spec: RunSpec, chosen: Sequence[Sequence[str]],
               machines: Sequence[Machine]) -> None:
    cpu = [m.name for m, ids in zip(machines, chosen, strict=True)
           if all(i.startswith("cpu:") for i in ids)]
    if cpu and len(cpu) < len(machines):
        raise SpecError([Problem(_HOSTS, spec.devices.hosts,
                                 f"CPU slots ({', '.join(cpu)}) and GPUs can't train together")])


def on(host: str, problem: Problem) -> Problem:
    """What is wrong with a host's devices, in words for who sits at another machine."""
    ids = ",".join(problem.value) if isinstance(problem.value, list) else problem.value
    words = problem.message.replace("this machine", host).partition(", or -n ")[0]
    return Problem(_HOSTS, f"{host}:{ids}" if ids else host,
                   words.replace(" --devices ", f" --set devices.hosts={host}:"))


def _joined(spec: RunSpec, nodes: Sequence[Node], base: tuple[str, RunSpec] | None) -> LaunchPlan:
    """One plan of all: every rank and process with its host."""
    first = nodes[0].plan
    return replace(
        first, spec=spec, name=spec.name,
        ranks=tuple(replace(r, host=n.name) for n in nodes for r in n.plan.ranks),
        processes=tuple(_there(p, n) for n in nodes for p in n.plan.processes),
        lines=(engine_line(spec, base),),
        warnings=())  # where they meet was tried, not guessed


_PACKAGE = str(Path(__file__).parents[2])


def _there(process: Process, node: Node) -> Process:
    """A process as its host will start it: what it runs of ours lies elsewhere there."""
    package = node.machine.welcome.package or _PACKAGE

    def moved(text: str) -> str:
        return package + text[len(_PACKAGE):] if text.startswith(f"{_PACKAGE}/") else text

    return replace(process, host=node.name, argv=tuple(map(moved, process.argv)),
                   env={name: moved(text) for name, text in process.env.items()})
