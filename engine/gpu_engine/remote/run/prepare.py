"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
For a first attempt, for one that a person resumes, and for one after a failure.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import store
from gpu_engine.code.snapshot import Snapshot, take
from gpu_engine.common.errors import HostProblem, Problem, SpecError, UserError
from gpu_engine.common.files import size_of
from gpu_engine.devices.records import Inventory
from gpu_engine.plan import without_effect
from gpu_engine.plan.records import LaunchPlan, Sending
from gpu_engine.remote.reach import hosts, protocol
from gpu_engine.remote.reach.call import ask, at_once
from gpu_engine.remote.run import nodes, parts, queries, survey
from gpu_engine.remote.run.parts import Base, Part
from gpu_engine.runs import attempts, leftovers, sweep
from gpu_engine.runs.folder import Run
from gpu_engine.spec import catalog
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

_KEEP = 300.0
"""Seconds in which a host writes all files."""


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            before: Sequence[Part] = (), checkpoint: str | None = None, send: bool = True,
            in_sweep: bool = False) \
        -> tuple[RunSpec, Inventory, LaunchPlan, tuple[Part, ...]]:
    """Ask all hosts of `spec` at once, and work out what each is told: the spec with what follows
    from its hosts, their devices, the plan of the whole, and each host's part of it.

    before: the parts of the attempt before; hosts that were in it go on with their run there, from
    `checkpoint`; None: from the newest that loads.

    send: whether hosts are sent the code that they lack, so that they can check the run in it. If
    not, nothing is sent, and nothing can be started from the answer.

    in_sweep: it is compared with the others of its sweep.

    Raises HostProblem with everything that is wrong on any host, SpecError with what is wrong
    wherever it runs, UserError where hosts.toml is.
    """
    without = without_effect.told(spec, in_sweep=in_sweep)
    spec = nodes.whole(spec)
    asked = nodes.entries(spec)
    here = cwd or Path.cwd()
    known_runs = {p.host: p for p in before if p.run is not None}
    new = [e.host for e in asked if e.host not in known_runs]
    snapshot = _snapshot(here, new, {p.code for p in known_runs.values()}) \
        if new and spec.run.sync != "none" else None
    found = [hosts.find(entry.host) for entry in asked]
    # Code that is sent comes into a folder of its own below the home.
    folders = {h.name: known_runs[h.name].folders if h.name in known_runs
               else h.folders(str(here)) if snapshot is None else ("~",) for h in found}
    met = survey.survey(asked, found, list(folders.values()), [
        snapshot.name if snapshot is not None and h.name in new else None for h in found])
    problems = survey.torches(met, spec)
    if problems:
        raise HostProblem(problems)
    # Before they are asked to try ports: what does not fit anyway is told at once.
    nodes.spread(spec, met, address="127.0.0.1", port=MEETING_PORT, base=base)
    address, port = survey.meeting_point(met, spec) if len(met) > 1 else ("127.0.0.1", None)
    told, plan = nodes.spread(spec, met, address=address, port=port, base=base)
    lacking: list[nodes.Machine] = []
    sendings: list[Sending] = []
    for one in met:
        if snapshot is not None and (code := one.welcome.code) is not None:
            folders[one.name] = (code.path,)
            about = snapshot.about()
            sendings.append(Sending(one.name, code.path, code.there,
                                    *((0, 0) if code.there else (about.files, about.bytes))))
            lacking += () if code.there else (one,)
    if send and snapshot is not None:
        folders |= sent([one.host for one in lacking], snapshot)
        lacking, sendings = [], []
    use = spec.task.use
    if lacking and use is not None:
        try:
            catalog.describe(use, cwd=here)
        except UserError as err:
            raise SpecError([Problem("task.use", use, str(err))]) from None
    # In a preview who lacks the code is not asked what is wrong there: it is told at the launch.
    able = [i for i, one in enumerate(met) if one not in lacking]
    warnings, places = survey.check_parts([met[i] for i in able], [told[i].spec for i in able],
                                          [folders[met[i].name] for i in able])
    folders |= {met[i].name: (place,) for i, place in zip(able, places, strict=True)}
    # What is so on any machine is told once, and not by each of them.
    known = {f"{n.name}: {w}" for n in told
             for w in (*n.plan.warnings, *without_effect.told(n.spec))}
    warnings += survey.clocks(met)
    plan = replace(plan, warnings=(*without, *(w for w in warnings if w not in known)),
                   code=replace(snapshot.about(), sendings=tuple(sendings))
                   if snapshot is not None else None,
                   not_compared=None if known_runs else survey.not_compared(spec))
    key = secrets.token_hex(16)
    planned = [Part(
        host=n.name, node=n.number, ranks=tuple(r.rank for r in n.plan.ranks),
        spec=to_dict(n.spec, defaults=False), folders=folders[n.name], key=f"{key}/{n.number}",
        code=snapshot.name if snapshot is not None else None, skew=one.skew)
        for n, one in zip(told, met, strict=True)]
    return spec, nodes.inventory_of(met), plan, tuple(
        resumed(p, known_runs.get(p.host), checkpoint) for p in planned)


def resumed(part: Part, before: Part | None, checkpoint: str | None = None) -> Part:
    """`part` as another attempt of the run that `before` has there; as it is without one."""
    if before is None:
        return part
    return replace(part, run=before.run, code=before.code, path=before.path,
                   attempt=before.attempt + 1, resume=True, checkpoint=checkpoint,
                   fresh=(), bases=before.bases)


def _snapshot(here: Path, new: Sequence[str], known: Collection[str | None]) -> Snapshot:
    """The code that the `new` hosts are to be sent. A host that goes on with a run has the code
    that it was started with (`known`), and a new one gets no other. Raises SpecError."""
    # A copy of what was submitted is no repository, and has its list beside it.
    snapshot = store.of_folder(here) or take(here)
    if any(known) and snapshot.name not in known:
        raise SpecError([Problem("run.sync", "send", f"{here} has changed since the run was "
                                 f"started, so that {', '.join(new)} can't have the code that the "
                                 "others go on with; resume without, or start a new run")])
    return snapshot


def sent(lacking: Sequence[hosts.Host], snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """The folder of the code on each of these hosts, sent now. Raises HostProblem naming those that
    could not take it."""
    content = b"".join((snapshot.listed, *snapshot.contents)) if lacking else b""
    answers = at_once(lambda host: ask(
        host, protocol.CodeKept, "receive", snapshot.name, str(len(snapshot.listed)),
        content=content, seconds=_KEEP), lacking)
    problems = [Problem("run.sync", one.name, "the code could not be sent: "
                        f"{getattr(answer, 'reason', str(answer))}")
                for one, answer in zip(lacking, answers, strict=True)
                if isinstance(answer, UserError)]
    if problems:
        raise HostProblem(problems)
    return {one.name: (answer.path,) for one, answer in zip(lacking, answers, strict=True)
            if isinstance(answer, protocol.CodeKept)}


# --- another attempt ------------------------------------------------------------------------------

def prepare_again(run: Run, spec: RunSpec, start: str
                  ) -> tuple[RunSpec, Inventory, LaunchPlan, tuple[Part, ...]]:
    """What a person's resume of `run` with `spec` comes to, from the checkpoint that `start` means.
    Raises as `prepare`."""
    before = parts.read(run.path)
    first = next((p for p in before if p.node == 0), None)
    if first is not None:
        if first.run is None and leftovers.last_checkpoint(run.path):
            raise UserError(f"run {run.id} can't go on: its checkpoints were removed from "
                            f"{first.host}")
        asked = nodes.entries(spec)[0].host
        if first.run is not None and asked != first.host:
            raise SpecError([Problem("devices.hosts", asked, f"the checkpoints of run {run.id} are "
                                     f"on {first.host}, which has to stay the first host")])
    chosen = None if start == "newest" else queries.choose(run, start, spec.train.best)
    attempts.check_length(run, spec, chosen)
    spec, inventory, plan, planned_parts = prepare(
        spec, cwd=Path(run.cwd()), before=[*parts.former(run.path), *before], checkpoint=chosen,
        in_sweep=sweep.read(run.path) is not None)
    number = max(run.state().attempt, *(p.attempt for p in before), 0) + 1
    planned = run.plan()
    if plan.code is None and planned is not None:  # the hosts go on with what they were sent
        plan = replace(plan, code=planned.code)
    rungs, halved = run.state().rungs, spec.run
    if halved.limit and halved.halving and spec.task.use and rungs:
        # As its supervisor has it, which does not know of them: the rest is behind its checkpoint.
        halved = replace(halved, limit=halved.limit * (1 - rungs[-1].share), sync="none")
        told = to_dict(replace(spec, run=halved), defaults=False)["run"]
        planned_parts = [replace(p, spec=p.spec | {"run": told}) for p in planned_parts]
    return spec, inventory, plan, tuple(_joined(p, before, run, number) for p in planned_parts)


def _joined(part: Part, before: Sequence[Part], run: Run, number: int) -> Part:
    """`part` with its place among the hosts of the attempt before: what is here of a rank that was
    on another host stays, and what the new one says of it follows."""
    own = next((p.ranks for p in before if p.host == part.host and p.run is not None), ())
    fresh = tuple(rank for rank in part.ranks if rank not in own)
    kept = tuple(b for b in part.bases if b.rank in part.ranks and b.rank not in fresh)
    new = tuple(Base(rank, size) for rank in fresh if (size := size_of(run.events(rank))))
    return replace(part, attempt=number, fresh=fresh, bases=(*kept, *new))


def parts_again(run: Run, before: Sequence[Part], spec: RunSpec, left: int) -> tuple[Part, ...]:
    """All nodes of `run` once more, asked as before a launch. `left`: how many restarts a single
    one may make by itself. Raises as `prepare`."""
    again = replace(spec, train=replace(spec.train, restarts=left))
    _, _, _, planned = prepare(again, cwd=Path(run.cwd()), before=before)
    return tuple(_joined(p, before, run, max(b.attempt for b in before) + 1) for p in planned)
