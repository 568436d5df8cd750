"""Asking all hosts at once, before anything starts: who they are, and what is wrong there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace

import msgspec

from gpu_engine.common import paths
from gpu_engine.common.errors import HostProblem, Problem, SpecError
from gpu_engine.common.programs import version
from gpu_engine.interpreters.inspection import Build
from gpu_engine.remote.reach import protocol, ssh
from gpu_engine.remote.reach.call import Call, HostError, Refused, ask, at_once
from gpu_engine.remote.reach.hosts import Host, HostDevices
from gpu_engine.remote.run.nodes import Machine, on
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

APART = 1.0
"""Seconds that clocks may differ: beyond that, ages and durations of ranks on several machines
don't fit together."""
_KEY = "devices.hosts"


def meet(host: Host, folders: tuple[str, ...], *, slots: bool = False, code: str | None = None
         ) -> Machine:
    """Ask `host` who it is, what devices it has (`slots`: of its processor), and for the code of
    the name `code`. Raises Unreachable, Refused."""
    words = ["--slots"] * slots + (["--code", code] if code else [])
    with Call(host, "devices", "--json", "--watch", "1", *words, folders=(*folders, "~")) as call:
        welcome = call.next(protocol.Welcome)
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

def survey(asked: Sequence[HostDevices], hosts: Sequence[Host],
           folders: Sequence[tuple[str, ...]], code: Sequence[str | None]) -> list[Machine]:
    """Ask all hosts who they are. `folders`: where the run would start on each, and `code` the
    name of the code of which it is to tell whether it is there, in their order. Raises HostProblem
    naming every one that can't be reached, with the reason, and all that does not fit together."""
    def one(entry: HostDevices, host: Host, places: tuple[str, ...], name: str | None) -> Machine:
        slots = bool(entry.ids) and all(i.startswith("cpu:") for i in entry.ids)
        return meet(host, places, slots=slots, code=name)

    found = at_once(lambda told: one(*told), list(zip(asked, hosts, folders, code, strict=True)))
    problems = []
    met: dict[tuple[str | None, str], HostDevices] = {}
    for entry, there in zip(asked, found, strict=True):
        if not isinstance(there, Machine):
            problems.append(Problem(_KEY, entry.host, getattr(there, "reason", str(there))))
            continue
        other = met.setdefault((there.welcome.boot, there.welcome.place), entry)
        if other is not entry:
            ids = tuple(dict.fromkeys((*other.ids, *entry.ids)))
            problems.append(Problem(_KEY, entry.host, f"is the same machine as {other.host}; give "
                                    "all its devices in one entry: "
                                    f"{HostDevices(other.host, ids)}"))
        if (why := _other_version(there)) is not None:
            problems.append(Problem(_KEY, entry.host, why))
    if problems:
        raise HostProblem(problems)
    return [there for there in found if isinstance(there, Machine)]


def clocks(met: Sequence[Machine]) -> list[str]:
    """A warning for each host whose clock is not this machine's. No reason to refuse it: what
    failed first is judged by how far it was off when it was asked."""
    return [f"{one.name}: {why}" for one in met if (why := _other_clock(one)) is not None]


def torches(met: Sequence[Machine], spec: RunSpec) -> list[Problem]:
    """Hosts that have no torch, or another than the first one, where a task is trained in the
    interpreter that each finds."""
    if not _needs_torch(spec):
        return []
    first = met[0].welcome.torch
    out = []
    for one in met:
        torch = one.welcome.torch
        if (why := _no_torch(one)) is not None:
            out.append(Problem("run.python", None, f"{one.name}: {why}"))
        elif torch is not None and first is not None and _build(torch) != _build(first):
            out.append(Problem(_KEY, one.name, f"has {torch.sentence()}, {met[0].name} "
                                               f"{first.sentence()}; install the same on both"))
    return out


def _build(torch: Build) -> tuple[str, str | None, str | None]:
    return torch.version.partition("+")[0], torch.cuda, torch.hip


def meeting_point(met: Sequence[Machine], spec: RunSpec) -> tuple[str, int]:
    """A numeric address and a port of the first host that all others reach. Raises SpecError."""
    first, others = met[0], met[1:]
    networks = {one.welcome.network for one in met}
    given = spec.parallel.master_addr
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
        with Call(first.host, "port", str(spec.parallel.master_port or 0)) as listening:
            port = listening.next(protocol.Listening, 30).port
            answers = at_once(lambda one: ask(one.host, protocol.Reached, "port", str(port),
                                              *candidates), others)
    except Refused as err:
        raise SpecError([Problem("parallel.master_port", spec.parallel.master_port,
                                 f"{first.name}: {err.reason}")]) from None
    tried: dict[str, Mapping[str, str | None]] = {}
    for one, answer in zip(others, answers, strict=True):
        if not isinstance(answer, protocol.Reached):
            raise SpecError([Problem(_KEY, one.name, str(answer))])
        tried[one.name] = answer.tried
    for address in candidates:
        if all(t.get(address, "") is None for t in tried.values()):
            return address, port
    words = "; ".join(f"{name} can't reach {first.name} at {address}: {why}"
                      for name, told in tried.items() for address in candidates
                      if (why := told.get(address, "not tried")) is not None)
    raise SpecError([Problem("parallel.master_addr", candidates[0],
                             f"{words}. Open its ports for the others, or give an address that "
                             "they reach")])


def check_parts(met: Sequence[Machine], specs: Sequence[RunSpec],
                folders: Sequence[tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """What each host says of its part. Returns warnings, and the folder that each would run in.
    Raises HostProblem with everything that is wrong, on every host."""
    answers = at_once(lambda i: ask(
        met[i].host, protocol.Checked, "plan", "-", "--now", folders=folders[i] or ("~",),
        content=json.dumps(to_dict(specs[i], defaults=False)).encode(), seconds=120),
        range(len(met)))
    problems, warnings, places = [], [], []
    for one, answer in zip(met, answers, strict=True):
        if isinstance(answer, Refused):
            problems += [_problem(one.name, wrong) for wrong in answer.problems]
        elif not isinstance(answer, protocol.Checked):
            problems.append(Problem(_KEY, one.name, getattr(answer, "reason", str(answer))))
        else:
            places.append(answer.cwd)
            warnings += [f"{one.name}: {w}" for w in answer.warnings]
    if problems:
        raise HostProblem(problems)
    return warnings, places


def _problem(host: str, wrong: Problem) -> Problem:
    if wrong.key == "devices.ids":
        return on(host, wrong)
    return replace(wrong, message=f"{host}: {wrong.message}") if wrong.key \
        else Problem(_KEY, host, wrong.message)


def not_compared(spec: RunSpec) -> str | None:
    """For people: that the code of a run is not sent, so that nobody compares it with the hosts'.
    None: it is sent, or is gpu-panel's own."""
    use = spec.task.use
    if spec.run.sync != "none" or (use is not None and use.startswith("gpu_engine.")):
        return None
    return ("the code has to be the same on each host, and is not compared: run.sync=send sends it")
