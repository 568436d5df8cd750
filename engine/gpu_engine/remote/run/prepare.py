"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpu_engine.code.snapshot import Snapshot, take
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.records import LaunchPlan, Sending
from gpu_engine.remote.reach import file
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
    spec = nodes.whole(spec)
    asked = nodes.entries(spec)
    here = cwd or Path.cwd()
    known_runs = {p.host: p for p in before if p.run is not None}
    snapshot = _snapshot(spec, here, [e.host for e in asked], known_runs)
    hosts = [file.find(entry.host) for entry in asked]
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
        folders, specs, sendings = _places(met, told, known_runs, snapshot, here, send)
        # Where the code was sent, or is to be, its files are not compared.
        sent = any(p.code for p in known_runs.values()) or not all(s.there for s in sendings)
        same = {} if sent else survey.named_files(spec, here)
        warnings, places = survey.check(met, specs, folders, same)
        known = {f"{n.name}: {w}" for n in told for w in n.plan.warnings}
        warnings += survey.clocks(met)
    finally:
        survey.part(met)
    plan = replace(plan, warnings=tuple(w for w in warnings if w not in known),
                   code=replace(snapshot.about(), sendings=sendings)
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
                   fresh=(), bases=before.bases)


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


def _places(met: Sequence[survey.Asked], told: Sequence[nodes.Node], known: Mapping[str, Part],
            snapshot: Snapshot | None, here: Path, send: bool
            ) -> tuple[list[tuple[str, ...]], list[RunSpec], tuple[Sending, ...]]:
    """Where each host checks its part, and as which spec; what would be sent where nothing is. A
    host that lacks the code then checks all but the task, which is looked for here. Raises
    SpecError."""
    specs = [n.spec for n in told]
    if snapshot is None:
        return [known[m.name].folders if m.name in known else m.host.folders(str(here))
                for m in met], specs, ()
    new = [m for m in met if m.name not in known]
    if send:
        sendings: list[Sending] = []
        found = _all(new, at_once(lambda m: code.bring(m.way, snapshot), new), str)
    else:
        sendings = _all(new, at_once(lambda m: code.preview(m.way, snapshot), new), Sending)
        found = [s.folder if s.there else "~" for s in sendings]
    lacking, use = {s.host for s in sendings if not s.there}, specs[0].task.use
    if lacking and use is not None:
        try:
            catalog.describe(use, cwd=here)
        except UserError as err:
            raise SpecError([Problem("task.use", use, str(err))]) from None
    folders = {name: part.folders for name, part in known.items()} | {
        m.name: (folder,) for m, folder in zip(new, found, strict=True)}
    return [folders[m.name] for m in met], [
        replace(n.spec, task=_any_task(n.spec)) if n.name in lacking else n.spec
        for n in told], tuple(sendings)


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
