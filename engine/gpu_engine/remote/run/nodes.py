"""The hosts of a spec, asked all at once before anything starts: who they are, what is wrong there
and between them, what each is told, and the plan of the whole."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from gpu_engine.common import paths
from gpu_engine.common.errors import HostProblem, Problem, SpecError, UserError
from gpu_engine.common.programs import version
from gpu_engine.devices.records import Inventory
from gpu_engine.interpreters.inspection import Build
from gpu_engine.plan.build import engine_line
from gpu_engine.plan.build import plan as plan_of
from gpu_engine.plan.records import LaunchPlan, Process
from gpu_engine.remote.reach import protocol, ssh
from gpu_engine.remote.reach.call import Call, HostError, Refused, ask, at_once, reason
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import Welcome
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import HostDevices, parse_all
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

APART = 1.0
"""Seconds that clocks may differ: beyond that, ages and durations of ranks on several machines
don't fit together."""
_HOSTS = "devices.hosts"
_PACKAGE = str(Path(__file__).parents[2])


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


def meet(host: Host, folders: Sequence[str], *, slots: bool = False, code: str | None = None
         ) -> Machine:
    """Ask `host` who it is, what devices it has (`slots`: of its processor), and for the code of
    the name `code`. Raises Unreachable, Refused."""
    words = ["--slots"] * slots + (["--code", code] if code else [])
    with Call(host, "devices", "--json", "--watch", "1", *words, folders=(*folders, "~")) as call:
        welcome = call.next(Welcome)
        # It looked at its clock between these two moments, however long that took.
        least, most = welcome.clock - time.time(), welcome.clock - call.asked
        return Machine(host, welcome, welcome.inventory, min(max(least, 0.0), most), call.opened)


def _other_version(machine: Machine) -> str | None:
    there = machine.welcome.version
    return None if there == version() else \
        f"gpu-panel there is {there}, and {version()} here. {ssh.setup(machine.host)}"


def _other_clock(machine: Machine) -> str | None:
    skew = machine.skew
    return None if abs(skew) <= APART else (
        f"its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's, "
        "and so are the times that its ranks tell; timedatectl set-ntp true sets it right")


def _no_torch(machine: Machine) -> str | None:
    welcome = machine.welcome
    return None if welcome.interpreter is not None else \
        welcome.lacking or "no interpreter there has torch, which ranks need"


def unfit(machine: Machine, spec: RunSpec) -> str | None:
    """Why `spec` can't run there, whatever is free; None: nothing is known that keeps it."""
    return _other_version(machine) or (_no_torch(machine) if _needs_torch(spec) else None)


def _needs_torch(spec: RunSpec) -> bool:
    """Whether the interpreter that each host finds has to have torch."""
    return spec.task.use is not None and not spec.run.python


# --- can a host be used? --------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Checkup:
    """What asking a host gave."""

    host: Host
    machine: Machine | None
    """None: it can't be asked."""
    problems: tuple[str, ...]
    """What keeps it from being used, in sentences to act on."""

    @property
    def ok(self) -> bool:
        """Whether runs can be started there."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """For scripts."""
        there = self.machine
        welcome = there and msgspec.to_builtins(there.welcome)
        if welcome is not None:
            del welcome["code"]
        return {"host": asdict(self.host), "opened": there and there.opened,
                "clock": there and there.skew,
                "inventory": welcome and welcome.pop("inventory"), "welcome": welcome,
                "problems": self.problems, "ok": self.ok}


def check(hosts: Sequence[Host]) -> Iterator[Checkup]:
    """Ask all of `hosts` at once; they come in the order of their answers."""
    with ThreadPoolExecutor(max(len(hosts), 1)) as pool:
        for done in as_completed([pool.submit(_check, host) for host in hosts]):
            yield done.result()


def _check(host: Host) -> Checkup:
    try:
        there = meet(host, host.folders(paths.here()))
    except HostError as err:
        return Checkup(host, None, (err.reason,))
    return Checkup(host, there, tuple(filter(None, (
        _other_version(there), _no_torch(there), _other_clock(there), there.inventory.problem))))


# --- do they fit together? ------------------------------------------------------------------------

Asked = tuple[HostDevices, Host, Sequence[str], str | None]
"""A host, its devices, the folders in which the run may start there, and the name of its code."""


def survey(asked: Sequence[Asked]) -> list[Machine]:
    """Ask all hosts at once who they are. Raises HostProblem naming every one that can't be
    reached, with the reason, and all that does not fit together."""
    def one(told: Asked) -> Machine:
        entry, host, folders, code = told
        slots = bool(entry.ids) and all(i.startswith("cpu:") for i in entry.ids)
        return meet(host, folders, slots=slots, code=code)

    problems, machines = list[Problem](), list[Machine]()
    met: dict[tuple[str | None, str], HostDevices] = {}
    for (entry, *_), there in at_once(one, asked):
        if isinstance(there, UserError):
            problems.append(Problem(_HOSTS, entry.host, reason(there)))
            continue
        other = met.setdefault((there.welcome.boot, there.welcome.place), entry)
        if other is not entry:
            ids = tuple(dict.fromkeys((*other.ids, *entry.ids)))
            problems.append(Problem(_HOSTS, entry.host, f"is the same machine as {other.host}; "
                                    "give all its devices in one entry: "
                                    f"{HostDevices(other.host, ids)}"))
        if (why := _other_version(there)) is not None:
            problems.append(Problem(_HOSTS, entry.host, why))
        machines.append(there)
    if problems:
        raise HostProblem(problems)
    return machines


def clocks(met: Sequence[Machine]) -> list[str]:
    """A warning for each host whose clock is not this machine's. No reason to refuse it: what
    failed first is judged by how far it was off when it was asked."""
    return [f"{one.name}: {why}" for one in met if (why := _other_clock(one)) is not None]


def torches(met: Sequence[Machine], spec: RunSpec) -> list[Problem]:
    """Hosts that have no torch, or another than the first one, where a task is trained in the
    interpreter that each finds."""
    def build(torch: Build) -> tuple[object, ...]:
        return torch.version.partition("+")[0], torch.cuda, torch.hip

    first, out = met[0].welcome.torch, list[Problem]()
    for one in met if _needs_torch(spec) else ():
        torch = one.welcome.torch
        if (why := _no_torch(one)) is not None:
            out.append(Problem("run.python", None, f"{one.name}: {why}"))
        elif torch is not None and first is not None and build(torch) != build(first):
            out.append(Problem(_HOSTS, one.name, f"has {torch.sentence()}, {met[0].name} "
                                                 f"{first.sentence()}; install the same on both"))
    return out


def meeting_point(met: Sequence[Machine], spec: RunSpec) -> tuple[str, int]:
    """A numeric address and a port of the first host that all others reach. Raises SpecError."""
    first, *others = met
    networks = {one.welcome.network for one in met}
    given, wanted = spec.parallel.master_addr, spec.parallel.master_port
    if given != RunSpec().parallel.master_addr:
        candidates = (given,)
    elif len(networks) == 1 and None not in networks:
        candidates = ("127.0.0.1",)
    else:
        candidates = first.welcome.addresses
    if not candidates:
        raise SpecError([Problem("parallel.master_addr", None,
                                 f"{first.name} has no address but loopback, where nobody else "
                                 "reaches it")])
    try:
        with Call(first.host, "port", str(wanted or 0)) as listening:
            port = listening.next(protocol.Listening, 30).port
            answers = at_once(lambda one: ask(one.host, protocol.Reached, "port", str(port),
                                              *candidates).tried, others)
    except Refused as err:
        raise SpecError([Problem("parallel.master_port", wanted,
                                 f"{first.name}: {err.reason}")]) from None
    tried = dict[str, Mapping[str, str | None]]()
    for one, answer in answers:
        if isinstance(answer, UserError):
            raise SpecError([Problem(_HOSTS, one.name, str(answer))])
        tried[one.name] = answer
    for address in candidates:
        if all(told.get(address, "") is None for told in tried.values()):
            return address, port
    words = "; ".join(f"{name} can't reach {first.name} at {address}: {why}"
                      for name, told in tried.items() for address in candidates
                      if (why := told.get(address, "not tried")) is not None)
    raise SpecError([Problem("parallel.master_addr", candidates[0],
                             f"{words}. Open its ports for the others, or give an address that "
                             "they reach")])


# --- what each is told ----------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Node:
    """One host's part of a run."""

    machine: Machine
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
           base: tuple[str, RunSpec] | None = None) -> tuple[list[Node], LaunchPlan]:
    """What each of `machines`, in the order of the spec's hosts, is told, and the plan of the
    whole run. They meet at `address` and `port`. Raises SpecError with all that does not fit."""
    spec = whole(spec)
    chosen = [entry.ids or tuple(d.id for d in machine.inventory.devices)
              for entry, machine in zip(entries(spec), machines, strict=True)]
    cpu = [m.name for m, ids in zip(machines, chosen, strict=True)
           if all(i.startswith("cpu:") for i in ids)]
    if cpu and len(cpu) < len(machines):
        raise SpecError([Problem(_HOSTS, spec.devices.hosts,
                                 f"CPU slots ({', '.join(cpu)}) and GPUs can't train together")])
    nodes = list[Node]()
    for number, (machine, ids) in enumerate(zip(machines, chosen, strict=True)):
        place, train = spec.parallel, spec.train
        if len(machines) > 1:
            place = replace(place, node_rank=number, master_addr=address, master_port=port,
                            node_devices=[len(i) for i in chosen],
                            launcher="direct" if place.launcher == "auto" else place.launcher)
            train = replace(train, restarts=0)  # all nodes begin again together or none does
        mine = replace(
            spec, parallel=place, train=train, run=replace(spec.run, sync="none"),
            devices=replace(spec.devices, ids=list(ids), pick=None, hosts=None))
        try:
            plan = plan_of(mine, machine.inventory, python=machine.welcome.interpreter
                           or machine.welcome.python)
        except SpecError as err:
            problems = [_on(machine.name, p) if p.key.startswith("devices") else p
                        for p in err.problems]
            # What is not about its devices is wrong on any machine.
            kind = HostProblem if all(p.key == _HOSTS for p in problems) else SpecError
            raise kind(problems) from None
        nodes.append(Node(machine, mine, plan))
    return nodes, replace(
        nodes[0].plan, spec=spec, name=spec.name,
        ranks=tuple(replace(r, host=n.name) for n in nodes for r in n.plan.ranks),
        processes=tuple(_there(p, n.machine) for n in nodes for p in n.plan.processes),
        lines=(engine_line(spec, base),),
        warnings=())  # where they meet was tried, not guessed


def _on(host: str, problem: Problem) -> Problem:
    """What is wrong with a host's devices, in words for who sits at another machine."""
    ids = ",".join(problem.value) if isinstance(problem.value, list) else problem.value
    words = problem.message.replace("this machine", host).partition(", or -n ")[0]
    return Problem(_HOSTS, f"{host}:{ids}" if ids else host,
                   words.replace(" --devices ", f" --set devices.hosts={host}:"))


def _there(process: Process, machine: Machine) -> Process:
    """A process as its host will start it: what it runs of ours lies elsewhere there."""
    package = machine.welcome.package or _PACKAGE

    def moved(text: str) -> str:
        return package + text[len(_PACKAGE):] if text.startswith(f"{_PACKAGE}/") else text

    return replace(process, host=machine.name, argv=tuple(map(moved, process.argv)),
                   env={name: moved(text) for name, text in process.env.items()})


def check_parts(told: Sequence[tuple[Node, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """What each host says of its part, asked in these folders. Returns warnings, and the folder
    that each would run in. Raises HostProblem with everything that is wrong, on every host."""
    problems, warnings, places = [], [], []
    for (node, _), answer in at_once(lambda one: ask(
            one[0].machine.host, protocol.Checked, "plan", "-", "--now", folders=one[1],
            content=json.dumps(to_dict(one[0].spec, defaults=False)).encode(), seconds=120), told):
        if isinstance(answer, Refused):
            problems += [
                _on(node.name, wrong) if wrong.key == "devices.ids" else
                replace(wrong, message=f"{node.name}: {wrong.message}") if wrong.key else
                Problem(_HOSTS, node.name, wrong.message) for wrong in answer.problems]
        elif isinstance(answer, UserError):
            problems.append(Problem(_HOSTS, node.name, reason(answer)))
        else:
            places.append(answer.cwd)
            warnings += [f"{node.name}: {w}" for w in answer.warnings]
    if problems:
        raise HostProblem(problems)
    return warnings, places


def not_compared(spec: RunSpec) -> str | None:
    """For people: that the code of a run is not sent, so that nobody compares it with the hosts'.
    None: it is sent, or is gpu-panel's own."""
    use = spec.task.use
    if spec.run.sync != "none" or (use is not None and use.startswith("gpu_engine.")):
        return None
    return ("the code has to be the same on each host, and is not compared: run.sync=send sends it")
