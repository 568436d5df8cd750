"""From a spec with `devices.hosts` to what is launched: every host was asked, and nothing is wrong.
For a first attempt, for one that a person resumes, and for one after a failure.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from gpu_engine.code import store
from gpu_engine.code.snapshot import Snapshot, take
from gpu_engine.common.errors import HostProblem, Problem, SpecError, UserError
from gpu_engine.common.files import size_of
from gpu_engine.devices.records import Inventory
from gpu_engine.plan import without_effect
from gpu_engine.plan.records import LaunchPlan, Sending
from gpu_engine.remote.reach import hosts, protocol
from gpu_engine.remote.reach.call import Refused, ask, at_once, reason
from gpu_engine.remote.run import nodes, parts
from gpu_engine.remote.run.parts import Base, Part
from gpu_engine.runs import attempts, leftovers, sweep
from gpu_engine.runs.folder import Run
from gpu_engine.spec import catalog
from gpu_engine.spec.modes import MEETING_PORT
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict

_KEEP = 300.0
"""Seconds in which a host writes all files."""
Told = tuple[RunSpec, Inventory, LaunchPlan, tuple[Part, ...]]
"""A spec with what follows from its hosts, their devices, the plan of the whole, and each host's
part of it: what `launcher.Prepared` has."""


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            send: bool = True, in_sweep: bool = False,
            known: Mapping[str, Part] = MappingProxyType({})) -> Told:
    """Ask all hosts of `spec` at once, and work out what each is told.

    send: whether hosts are sent the code that they lack, so that they can check the run in it. If
    not, nothing is sent, and nothing can be started from the answer.

    in_sweep: it is compared with the others of its sweep.

    known: by host the part whose run there goes on, with the code that it has.

    Raises HostProblem with everything that is wrong on any host, SpecError with what is wrong
    wherever it runs, UserError where hosts.toml is.
    """
    if problems := without_effect.no_room(spec):
        raise SpecError(problems)
    without = without_effect.told(spec, in_sweep=in_sweep)
    spec = nodes.whole(spec)
    asked, here = nodes.entries(spec), cwd or Path.cwd()
    new = [e.host for e in asked if e.host not in known]
    snapshot = name = None
    if new and spec.run.sync != "none":
        # A copy of what was submitted is no repository, and has its list beside it.
        snapshot = store.of_folder(here) or take(here)
        name, sent_before = snapshot.name, {p.code for p in known.values()} - {None}
        if sent_before and name not in sent_before:
            raise SpecError([Problem("run.sync", "send", f"{here} has changed since the run was "
                                     f"started, so that {', '.join(new)} can't have the code that "
                                     "the others go on with; resume without, or start a new run")])
    found = [hosts.find(entry.host) for entry in asked]
    # Code that is sent comes into a folder of its own below the home.
    folders = {h.name: known[h.name].folders if h.name in known
               else h.folders(str(here)) if snapshot is None else ("~",) for h in found}
    met = nodes.survey([(entry, host, folders[host.name], name if host.name in new else None)
                        for entry, host in zip(asked, found, strict=True)])
    if problems := nodes.torches(met, spec):
        raise HostProblem(problems)
    # Before they are asked to try ports: what does not fit anyway is told at once.
    nodes.spread(spec, met, address="127.0.0.1", port=MEETING_PORT, base=base)
    address, port = nodes.meeting_point(met, spec) if len(met) > 1 else ("127.0.0.1", None)
    told, plan = nodes.spread(spec, met, address=address, port=port, base=base)
    code, lacking = None, list[hosts.Host]()
    if snapshot is not None:
        code = snapshot.about()
        there = {one.name: state for one in met if (state := one.welcome.code) is not None}
        folders |= {host: (state.path,) for host, state in there.items()}
        lacking = [one.host for one in met if one.name in there and not there[one.name].there]
        if send:
            folders |= sent(lacking, snapshot)
            lacking = []
        else:
            code = replace(code, sendings=tuple(Sending(
                host, state.path, state.there,
                *((0, 0) if state.there else (code.files, code.bytes)))
                for host, state in there.items()))
    use = spec.task.use
    if lacking and use is not None:
        try:
            catalog.describe(use, cwd=here)
        except UserError as err:
            raise SpecError([Problem("task.use", use, str(err))]) from None
    # In a preview who lacks the code is not asked what is wrong there: it is told at the launch.
    able = [n for n in told if n.machine.host not in lacking]
    warnings, places = nodes.check_parts([(n, folders[n.name]) for n in able])
    folders |= {n.name: (place,) for n, place in zip(able, places, strict=True)}
    # What is so on any machine is told once, and not by each of them.
    everywhere = {f"{n.name}: {w}" for n in told
                  for w in (*n.plan.warnings, *without_effect.told(n.spec))}
    plan = replace(plan, code=code, not_compared=None if known else nodes.not_compared(spec),
                   warnings=(*without, *(w for w in (*warnings, *nodes.clocks(met))
                                         if w not in everywhere)))
    key = secrets.token_hex(16)
    devices = tuple(replace(d, id=f"{m.name}:{d.id}") for m in met for d in m.inventory.devices)
    return spec, Inventory(devices, met[0].inventory.source), plan, tuple(Part(
        host=n.name, node=number, ranks=tuple(r.rank for r in n.plan.ranks),
        spec=to_dict(n.spec, defaults=False), folders=folders[n.name], key=f"{key}/{number}",
        code=name, skew=n.machine.skew) for number, n in enumerate(told))


def sent(lacking: Sequence[hosts.Host], snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """The folder of the code on each of these hosts, sent now. Raises HostProblem naming those that
    could not take it."""
    content = b"".join((snapshot.listed, *snapshot.contents)) if lacking else b""
    kept, problems = dict[str, tuple[str, ...]](), list[Problem]()
    for host, answer in at_once(lambda host: ask(
            host, protocol.CodeKept, "receive", snapshot.name, str(len(snapshot.listed)),
            content=content, seconds=_KEEP).path, lacking):
        if isinstance(answer, UserError):
            problems.append(Problem("run.sync", host.name,
                                    f"the code could not be sent: {reason(answer)}"))
        else:
            kept[host.name] = (answer,)
    if problems:
        raise HostProblem(problems)
    return kept


# --- another attempt ------------------------------------------------------------------------------

def prepare_again(run: Run, spec: RunSpec, start: str) -> Told:
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
    chosen = None if start == "newest" else checkpoint_of(run, start, spec.train.best)[1]
    attempts.check_length(run, spec, chosen)
    spec, inventory, plan, told = again(run, spec, before, chosen)
    if plan.code is None and (planned := run.plan()) is not None:
        plan = replace(plan, code=planned.code)  # the hosts go on with what they were sent
    rungs, halved = run.state().rungs, spec.run
    if halved.limit and halved.halving and spec.task.use and rungs:
        # As its supervisor has it, which does not know of them: the rest is behind its checkpoint.
        halved = replace(halved, limit=halved.limit * (1 - rungs[-1].share), sync="none")
        own = to_dict(replace(spec, run=halved), defaults=False)["run"]
        told = tuple(replace(p, spec=p.spec | {"run": own}) for p in told)
    return spec, inventory, plan, told


def again(run: Run, spec: RunSpec, before: Sequence[Part], checkpoint: str | None = None
          ) -> Told:
    """`prepare` for another attempt after that which had the parts `before`, from `checkpoint`;
    None: from the newest that loads. What is here of a rank that was on another host then stays,
    and what the new one says of it follows."""
    known = {p.host: p for p in (*parts.former(run.path), *before) if p.run is not None}
    whole, devices, plan, planned = prepare(spec, cwd=Path(run.cwd()), known=known,
                                            in_sweep=sweep.read(run.path) is not None)
    number, told = max(run.state().attempt, *(p.attempt for p in before), 0) + 1, list[Part]()
    for part in planned:
        own, kept = next((p.ranks for p in before if p.host == part.host and p.run), ()), ()
        if (there := known.get(part.host)) is not None:
            kept = there.bases
            part = replace(part, run=there.run, code=there.code, path=there.path, resume=True,
                           checkpoint=checkpoint)
        fresh = tuple(rank for rank in part.ranks if rank not in own)
        new = tuple(Base(rank, size) for rank in fresh if (size := size_of(run.events(rank))))
        told.append(replace(part, attempt=number, fresh=fresh, bases=(
            *(b for b in kept if b.rank in part.ranks and b.rank not in fresh), *new)))
    return whole, devices, plan, tuple(told)


def checkpoint_of(run: Run, which: str, best: str | None) -> tuple[Part, str]:
    """The part that has rank 0, and the name of the checkpoint there that `which` means, by the
    rules of `gpu-engine export`. Raises UserError."""
    part = next((p for p in parts.read(run.path) if p.node == 0), None)
    if part is None or part.run is None:
        raise UserError(f"run {run.id} has begun on no host, so there is no checkpoint")
    name = ask(parts.host_of(run.path, part), protocol.Chosen, "export", part.run, "--from", which,
               *(["--best", best] if best else [])).checkpoint
    if re.fullmatch(r"step-[0-9]{8}", name) is None:
        raise Refused(part.host, f"{name[:40]!r} is no name of a checkpoint")
    return part, name
