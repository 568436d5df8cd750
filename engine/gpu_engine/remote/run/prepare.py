"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code.snapshot import Snapshot, take
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.records import LaunchPlan, Sending
from gpu_engine.remote.reach import file, protocol
from gpu_engine.remote.reach.call import ask, at_once
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.run import nodes, survey
from gpu_engine.remote.run.parts import Part
from gpu_engine.spec import catalog
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

_KEEP = 300.0
"""Seconds in which a host writes all files."""


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
        else h.folders(str(here)) if snapshot is None else ("~",) for h in hosts],
        [None if snapshot is None or h.name in known_runs else snapshot.name for h in hosts])
    problems = survey.torches(met, spec)
    if problems:
        raise SpecError(problems)
    # Before they are asked to try ports: what does not fit anyway is told at once.
    nodes.spread(spec, met, address="127.0.0.1", port=MEETING_PORT, base=base)
    address, port = survey.meeting_point(met, spec) if len(met) > 1 else ("127.0.0.1", None)
    told, plan = nodes.spread(spec, met, address=address, port=port, base=base)
    folders = _folders(met, known_runs, here)
    lacking = [one for one in met if one.met.code is not None and not one.met.code.there]
    sendings: tuple[Sending, ...] = ()
    if send and snapshot is not None:
        folders |= sent([one.host for one in lacking], snapshot)
        lacking = []
    elif snapshot is not None:
        about = snapshot.about()
        sendings = tuple(
            Sending(one.name, code.path, True, 0, 0) if code.there else
            Sending(one.name, code.path, False, about.files, about.bytes)
            for one in met if (code := one.met.code) is not None)
    use = spec.task.use
    if lacking and use is not None:
        try:
            catalog.describe(use, cwd=here)
        except UserError as err:
            raise SpecError([Problem("task.use", use, str(err))]) from None
    # In a preview who lacks the code is not asked what is wrong there: it is told at the launch.
    able = [i for i, one in enumerate(met) if one not in lacking]
    warnings, places = survey.check([met[i] for i in able], [told[i].spec for i in able],
                                    [folders[met[i].name] for i in able])
    folders |= {met[i].name: (place,) for i, place in zip(able, places, strict=True)}
    known = {f"{n.name}: {w}" for n in told for w in n.plan.warnings}
    warnings += survey.clocks(met)
    plan = replace(plan, warnings=tuple(w for w in warnings if w not in known),
                   code=replace(snapshot.about(), sendings=sendings)
                   if snapshot is not None else None,
                   not_compared=None if known_runs else survey.not_compared(spec))
    key = secrets.token_hex(16)
    parts = [Part(
        host=n.name, node=n.number, ranks=tuple(r.rank for r in n.plan.ranks),
        spec=to_dict(n.spec, defaults=False), folders=folders[n.name], key=f"{key}/{n.number}",
        code=snapshot.name if snapshot is not None else None, skew=one.met.skew)
        for n, one in zip(told, met, strict=True)]
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


def _folders(met: Sequence[survey.Asked], known: Mapping[str, Part], here: Path
             ) -> dict[str, tuple[str, ...]]:
    """Where each host has its part, as far as that is known before any code is sent."""
    return {one.name: known[one.name].folders if one.name in known
            else one.host.folders(str(here)) if one.met.code is None
            else (one.met.code.path,) for one in met}


def sent(lacking: Sequence[Host], snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """The folder of the code on each of these hosts, sent now. Raises SpecError naming those that
    could not take it."""
    listed = snapshot.listed
    packed = zlib.compress(b"".join((listed, *snapshot.contents)), 1) if lacking else b""
    answers = at_once(lambda host: ask(
        host, protocol.SendCode(snapshot.name, len(listed), len(packed)), protocol.CodeState,
        _KEEP, packed), lacking)
    problems = [Problem("run.sync", one.name, "the code could not be sent: "
                        f"{getattr(answer, 'reason', str(answer))}")
                for one, answer in zip(lacking, answers, strict=True)
                if isinstance(answer, UserError)]
    if problems:
        raise SpecError(problems)
    return {one.name: (answer.path,) for one, answer in zip(lacking, answers, strict=True)
            if isinstance(answer, protocol.CodeState)}
