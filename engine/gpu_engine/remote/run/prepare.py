"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpu_engine.code.snapshot import Snapshot, take
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.records import LaunchPlan, Sending
from gpu_engine.remote.reach.channel import at_once
from gpu_engine.remote.run import code, nodes, survey
from gpu_engine.remote.run.parts import Part
from gpu_engine.spec import catalog
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.schema import RunSpec, TaskSpec
from gpu_engine.spec.write import to_dict

T = TypeVar("T")


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            before: Sequence[Part] = (), checkpoint: str | None = None, send: bool = True) \
        -> tuple[RunSpec, Inventory, LaunchPlan, tuple[Part, ...]]:
    """Ask all hosts of `spec` at once, and work out what each is told: the spec with what follows
    from its hosts, their devices, the plan of the whole, and each host's part of it.

    before: the parts of the attempt before; hosts that were in it go on with their run there, from
    `checkpoint`; None: from the newest that loads.

    send: whether hosts are sent the code that they lack, so that they can check the run in it. If
    not, nothing is sent, and nothing can be started from the answer.

    Raises SpecError with everything that is wrong on any host, UserError where hosts.toml is.
    """
    if spec.run.debug_rank is not None:
        raise SpecError([Problem(
            "run.debug_rank", spec.run.debug_rank,
            "no terminal reaches other machines: start the run on the machine of this rank")])
    spec = nodes.whole(spec)
    asked = nodes.entries(spec)
    here = cwd or Path.cwd()
    known_runs = {p.host: p for p in before if p.run is not None}
    snapshot = _snapshot(spec, here, [e.host for e in asked], known_runs)
    hosts = survey.hosts_of(asked)
    # Code that is sent comes into a folder of its own below the home.
    met = survey.survey(asked, hosts, [
        known_runs[h.name].folders if h.name in known_runs
        else h.folders(str(here)) if snapshot is None else ("~",) for h in hosts])
    try:
        problems = survey.torches(met, spec)
        if problems:
            raise SpecError(problems)
        # Before they are asked to try ports: what does not fit anyway is told at once.
        nodes.spread(spec, met, address="127.0.0.1", port=MEETING_PORT, base=base)
        address, port = survey.meeting_point(met, spec) if len(met) > 1 else ("127.0.0.1", None)
        told, plan = nodes.spread(spec, met, address=address, port=port, base=base)
        there = _sent(met, told, known_runs, snapshot, here) if send or snapshot is None \
            else _previewed(met, told, known_runs, snapshot, here)
        same = survey.named_files(spec, here) if there.same else {}
        warnings, places = survey.check(met, there.specs, there.folders, same)
        known = {f"{n.name}: {w}" for n in told for w in n.plan.warnings}
        warnings += survey.clocks(met)
    finally:
        survey.part(met)
    plan = replace(plan, warnings=tuple(w for w in warnings if w not in known),
                   code=replace(snapshot.about(), sendings=there.sendings)
                   if snapshot is not None else None,
                   not_compared=None if known_runs else survey.not_compared(spec, here))
    key = secrets.token_hex(16)
    parts = [Part(
        host=n.name, node=n.number, ranks=tuple(r.rank for r in n.plan.ranks),
        spec=to_dict(n.spec, defaults=False), folders=(place,), key=f"{key}/{n.number}",
        code=snapshot.name if snapshot is not None else None, skew=one.skew)
        for n, one, place in zip(told, met, places, strict=True)]
    return spec, nodes.inventory_of(met), plan, tuple(
        resumed(p, known_runs.get(p.host), checkpoint) for p in parts)


def resumed(part: Part, before: Part | None, checkpoint: str | None = None) -> Part:
    """`part` as another attempt of the run that `before` has there; as it is without one."""
    if before is None:
        return part
    return replace(part, run=before.run, code=before.code, path=before.path,
                   attempt=before.attempt + 1, resume=True, checkpoint=checkpoint,
                   bring=None, fresh=(), bases=before.bases)


def _snapshot(spec: RunSpec, here: Path, hosts: Sequence[str], known: Mapping[str, Part]
              ) -> Snapshot | None:
    """The code that hosts are to be sent; None where none is. A host that goes on with a run has
    the code that it was started with, and a new one gets no other. Raises SpecError."""
    new = [host for host in hosts if host not in known]
    if spec.run.sync == "none" or not new:
        return None
    snapshot = take(here)
    names = {p.code for p in known.values()} - {None}
    if names and snapshot.name not in names:
        raise SpecError([Problem("run.sync", "send", f"{here} has changed since the run was "
                                 f"started, so that {', '.join(new)} can't have the code that the "
                                 "others go on with; resume without, or start a new run")])
    return snapshot


@dataclass(frozen=True, slots=True)
class _There:
    """How each host checks its part."""

    folders: list[tuple[str, ...]]
    specs: list[RunSpec]
    same: bool
    """Whether the files that the task or command names have to be there as they are here."""
    sendings: tuple[Sending, ...] = ()


def _sent(met: Sequence[survey.Asked], told: Sequence[nodes.Node], known: Mapping[str, Part],
          snapshot: Snapshot | None, here: Path) -> _There:
    """Where each host's part would run, the code sent there. Raises SpecError."""
    def one(host: survey.Asked) -> tuple[str, ...]:
        if host.name in known:
            return known[host.name].folders
        if snapshot is not None:
            return (code.bring(host.way, snapshot),)
        return host.host.folders(str(here))

    return _There(_all(met, at_once(one, met), tuple), [n.spec for n in told],
                  same=not any(p.code for p in known.values()))


def _previewed(met: Sequence[survey.Asked], told: Sequence[nodes.Node], known: Mapping[str, Part],
               snapshot: Snapshot, here: Path) -> _There:
    """As `_sent`, with nothing sent: a host that lacks the code checks all but the task, which is
    looked for here. Raises SpecError."""
    new = [one for one in met if one.name not in known]
    sendings = {s.host: s for s in _all(
        new, at_once(lambda one: code.preview(one.way, snapshot), new), Sending)}
    lacking = {name for name, sending in sendings.items() if not sending.there}
    use = told[0].spec.task.use
    if lacking and use is not None:
        try:
            catalog.describe(use, cwd=here)
        except UserError as err:
            raise SpecError([Problem("task.use", use, str(err))]) from None
    folders = [("~",) if one.name in lacking else (sendings[one.name].folder,)
               if one.name in sendings else known[one.name].folders for one in met]
    specs = [replace(n.spec, task=_any_task(n.spec)) if n.name in lacking else n.spec for n in told]
    return _There(folders, specs, same=not lacking, sendings=tuple(sendings.values()))


def _any_task(spec: RunSpec) -> TaskSpec:
    """A task that is everywhere, with or without torch as that of `spec` is."""
    return TaskSpec(use=catalog.BUILTIN[0]) if spec.task.use is not None \
        else TaskSpec(command=["sh"])


def _all(met: Sequence[survey.Asked], found: Sequence[object], kind: type[T]) -> list[T]:
    """What was found on every host. Raises SpecError naming those that failed."""
    problems = [Problem("run.sync", m.name, f"the code could not be sent: "
                                            f"{getattr(f, 'reason', str(f))}")
                for m, f in zip(met, found, strict=True) if isinstance(f, UserError)]
    if problems:
        raise SpecError(problems)
    return [f for f in found if isinstance(f, kind)]
