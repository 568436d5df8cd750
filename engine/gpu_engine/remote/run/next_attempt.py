"""Another attempt of a run on hosts: what each of them is told then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.common.files import size_of
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.remote.run import nodes, parts, queries
from gpu_engine.remote.run.parts import Base, Part
from gpu_engine.remote.run.prepare import prepare
from gpu_engine.runs import attempts, leftovers
from gpu_engine.runs.folder import Run
from gpu_engine.spec.schema import RunSpec


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
        spec, cwd=Path(run.cwd()), before=[*parts.former(run.path), *before], checkpoint=chosen)
    number = max(run.state().attempt, *(p.attempt for p in before), 0) + 1
    planned = run.plan()
    if plan.code is None and planned is not None:  # the hosts go on with what they were sent
        plan = replace(plan, code=planned.code)
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
