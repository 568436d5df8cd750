"""Asking all hosts at once, before anything starts: who they are, and what is wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.programs import version
from gpu_engine.interpreters.ask import Build
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.call import Call, HostError, Refused, ask, at_once
from gpu_engine.remote.reach.checkup import Met, meet
from gpu_engine.remote.reach.records import Host, HostDevices
from gpu_engine.remote.run.nodes import Machine, on
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

APART = 1.0
"""Seconds by which clocks may differ without a word."""
_KEY = "devices.hosts"


@dataclass(frozen=True, slots=True)
class Asked(Machine):
    """A host that has answered."""

    entry: HostDevices
    met: Met


def survey(asked: Sequence[HostDevices], hosts: Sequence[Host],
           folders: Sequence[tuple[str, ...]] = (), code: Sequence[str | None] = ()
           ) -> list[Asked]:
    """Ask all hosts who they are. `folders`: where the run would start on each, and `code` the
    name of the code of which it is to tell whether it is there, in their order. Raises SpecError
    naming every one that can't be reached, with the reason, and all that does not fit together."""
    def one(entry: HostDevices, host: Host, places: tuple[str, ...], name: str | None) -> Asked:
        slots = bool(entry.ids) and all(i.startswith("cpu:") for i in entry.ids)
        met = meet(host, places, slots=slots, code=name)
        return Asked(host, met.welcome, met.inventory, entry, met)

    count = len(hosts)
    found = at_once(lambda told: one(*told), list(zip(
        asked, hosts, folders or [()] * count, code or [None] * count, strict=True)))
    met = [f for f in found if isinstance(f, Asked)]
    problems = [Problem(_KEY, h.name, f.reason if isinstance(f, HostError) else str(f))
                for h, f in zip(hosts, found, strict=True) if isinstance(f, UserError)]
    problems += _unlike(met)
    if problems:
        raise SpecError(problems)
    return met


def _unlike(met: Sequence[Asked]) -> list[Problem]:
    """What does not fit between the hosts themselves."""
    out, seen = [], {}
    for one in met:
        other = seen.setdefault((one.welcome.boot, one.welcome.place), one)
        if other is not one:
            ids = tuple(dict.fromkeys((*other.entry.ids, *one.entry.ids)))
            out.append(Problem(_KEY, one.name, f"is the same machine as {other.name}; give all its "
                                               "devices in one entry: "
                                               f"{HostDevices(other.name, ids)}"))
        there = one.welcome.version
        if there != version():
            out.append(Problem(_KEY, one.name, f"gpu-panel there is {there}, here {version()}: "
                                               f"gpu-engine hosts setup {one.name}"))
    return out


def clocks(met: Sequence[Asked]) -> list[str]:
    """A warning for each host whose clock is not this machine's. No reason to refuse it: what
    failed first is judged by how far it was off when it was asked."""
    return [f"{one.name}: its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} "
            "this machine's, and so are the times that its ranks tell; timedatectl set-ntp true "
            "sets it right"
            for one in met if abs(skew := one.met.skew) - one.met.doubt > APART]


def torches(met: Sequence[Asked], spec: RunSpec) -> list[Problem]:
    """Hosts that have no torch, or another than the first one, where a task is trained in the
    interpreter that each finds."""
    if spec.task.use is None or spec.run.python:
        return []
    first = met[0].welcome.torch
    out = []
    for one in met:
        torch = one.welcome.torch
        if one.welcome.interpreter is None:
            why = one.welcome.lacking or "no interpreter there has torch"
            out.append(Problem("run.python", None, f"{one.name}: {why}"))
        elif torch is not None and first is not None and _build(torch) != _build(first):
            out.append(Problem(_KEY, one.name, f"has {torch.sentence()}, {met[0].name} "
                                               f"{first.sentence()}; install the same on both"))
    return out


def _build(torch: Build) -> tuple[str, str | None, str | None]:
    return torch.version.partition("+")[0], torch.cuda, torch.hip


def meeting_point(met: Sequence[Asked], spec: RunSpec) -> tuple[str, int]:
    """A numeric address and a port of the first host that all others reach. Raises SpecError."""
    first, others = met[0], met[1:]
    networks = {one.welcome.network for one in met}
    given = spec.parallel.master_addr
    own = given != RunSpec().parallel.master_addr
    if own:
        candidates = (given,)
    elif len(networks) == 1 and None not in networks:
        candidates = ("127.0.0.1",)
    else:
        candidates = first.welcome.addresses
    if not candidates:
        raise SpecError([Problem("parallel.master_addr", None,
                                 f"{first.name} has no address but loopback, where nobody else "
                                 "reaches it")])
    if own and len(networks) > 1 and (given == "localhost" or given.startswith("127.")):
        raise SpecError([Problem("parallel.master_addr", given,
                                 "means each machine itself; give an address of "
                                 f"{first.name} that the others reach, of "
                                 f"{', '.join(first.welcome.addresses) or 'none'}")])
    try:
        with Call(first.host, protocol.Listen(spec.parallel.master_port or 0, 30.0)) as listening:
            port = listening.expect(protocol.Listening, 30).port
            answers = at_once(lambda one: ask(one.host, protocol.Reach(candidates, port),
                                              protocol.Reached), others)
    except Refused as err:
        raise SpecError([Problem("parallel.master_port", spec.parallel.master_port,
                                 f"{first.name}: {err.reason}")]) from None
    return _reached(first, others, answers, candidates), port


def _reached(first: Asked, others: Sequence[Asked], answers: Sequence[object],
             candidates: Sequence[str]) -> str:
    tried: dict[str, Mapping[str, str | None]] = {}
    for one, answer in zip(others, answers, strict=True):
        if isinstance(answer, UserError):
            raise SpecError([Problem(_KEY, one.name, str(answer))])
        assert isinstance(answer, protocol.Reached)
        tried[one.name] = answer.tried
    for address in candidates:
        if all(t.get(address, "") is None for t in tried.values()):
            return address
    words = "; ".join(f"{name} can't reach {first.name} at {address}: {why}"
                      for name, told in tried.items() for address in candidates
                      if (why := told.get(address, "not tried")) is not None)
    raise SpecError([Problem("parallel.master_addr", candidates[0],
                             f"{words}. Open its ports for the others, or give an address that "
                             "they reach")])


def check(met: Sequence[Asked], specs: Sequence[RunSpec], folders: Sequence[tuple[str, ...]]
          ) -> tuple[list[str], list[str]]:
    """What each host says of its part. Returns warnings, and the folder that each would run in.
    Raises SpecError with everything that is wrong, on every host."""
    answers = at_once(lambda i: ask(met[i].host, protocol.Check(
        to_dict(specs[i], defaults=False), folders[i]), protocol.Checked, 120), range(len(met)))
    problems, warnings, places = [], [], []
    for one, answer in zip(met, answers, strict=True):
        if not isinstance(answer, protocol.Checked):
            problems.append(Problem(_KEY, one.name, getattr(answer, "reason", str(answer))))
            continue
        places.append(answer.folder)
        warnings += [f"{one.name}: {w}" for w in answer.warnings]
        problems += [_problem(one.name, wrong) for wrong in answer.wrong]
    if problems:
        raise SpecError(problems)
    return warnings, places


def _problem(host: str, wrong: protocol.Wrong) -> Problem:
    if wrong.key == "devices.ids":
        return on(host, Problem(wrong.key, wrong.value, wrong.message))
    return Problem(wrong.key, wrong.value or None, f"{host}: {wrong.message}") if wrong.key \
        else Problem(_KEY, host, wrong.message)


def not_compared(spec: RunSpec) -> str | None:
    """For people: that the code of a run is not sent, so that nobody compares it with the hosts'.
    None: it is sent, or is gpu-panel's own."""
    use = spec.task.use
    if spec.run.sync != "none" or (use is not None and use.startswith("gpu_engine.")):
        return None
    return ("the code has to be the same on each host, and is not compared: run.sync=send sends it")
