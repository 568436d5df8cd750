"""Checking all members of a sweep, and then putting all of them into the queue, or none."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.launching.launcher import discover_for
from gpu_engine.plan.check import counted
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.queue import serve
from gpu_engine.queue import submit as queue
from gpu_engine.queue.submit import When
from gpu_engine.runs import sweep as record
from gpu_engine.runs.create import discard
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep.grid import Member

Base = tuple[str, RunSpec] | None
"""(name, spec) of the preset that the spec is based on."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that was submitted."""

    id: str
    runs: tuple[Run, ...]
    doubt: str | None
    """What a person should know of how its code is kept."""


def plans(members: Sequence[Member], inventory: Inventory | None = None, base: Base = None
          ) -> list[LaunchPlan]:
    """The plan of each member, made without side effects. Raises SpecError with what is wrong with
    the first of them that could not run."""
    inventory = inventory or discover_for(members[0].spec)
    found = list[LaunchPlan]()
    for member in members:
        try:
            found.append(queue.plan(member.spec, inventory, base))
        except SpecError as err:
            where = f"(run {member.index} of {len(members)}, {member.spec.name})"
            raise SpecError([replace(p, message=f"{p.message} {where}") for p in err.problems]
                            ) from None
    return found


def submit(members: Sequence[Member], when: When, name: str, base: Base = None) -> Sweep:
    """Put all members into the line. If one can't be, those before it are taken back. Raises
    SpecError before anything was submitted, UserError."""
    ours = [m.spec for m in members if m.spec.task.command or ".py:" in (m.spec.task.use or "")]
    prepared = queue.prepare(ours[0] if ours else members[0].spec)  # whose code is to be kept
    plans(members, prepared.inventory, base)
    queue.ask([m.spec for m in members], prepared.folder)
    ident, begun = _new_id(), time.time()
    done: list[Run] = []
    try:
        for member in members:
            place = _place(member, ident, name, len(members), begun)
            done.append(queue.submit(
                member.spec, when, prepared, base=base, member=place, begin=False))
        serve.ensure()
    except BaseException:
        _undo(done)
        raise
    return Sweep(ident, tuple(done), prepared.kept.doubt)


def _place(member: Member, ident: str, name: str, of: int, begun: float) -> record.Member:
    devices = counted(member.spec).devices
    return record.Member(ident, name, member.index, of, begun, member.values, member.repeat,
                         devices.pick, devices.free_gib)


def _undo(runs: Sequence[Run]) -> None:
    """Undo a submission that did not come to its end. One that was started meanwhile is asked to
    stop and stays."""
    for run in reversed(runs):  # the next in the line last
        with contextlib.suppress(UserError, OSError):
            run.stop()
        if run.state().state == "stopped":
            discard(run)


def _new_id() -> str:
    taken = {m.sweep for run in each_run() if (m := record.read(run.path)) is not None}
    while (ident := "s" + os.urandom(2).hex()) in taken:
        pass
    return ident
