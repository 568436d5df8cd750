"""The job of one rank: the plan, and this rank's part of it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_inside
from gpu_engine.plan.batch import Batch
from gpu_engine.plan.records import LaunchPlan, RankPlan
from gpu_engine.spec.schema import RunSpec
from gpu_engine.worker.rank.identity import Identity, identify


@dataclass(frozen=True)
class Job:
    """Which rank this is and what it does."""

    run: Path
    """The run folder."""
    who: Identity
    attempt: int
    plan: LaunchPlan = field(repr=False)
    mine: RankPlan
    """This rank's entry in the plan."""

    @property
    def spec(self) -> RunSpec:
        """What the person chose."""
        return self.plan.spec

    @property
    def batch(self) -> Batch:
        """The batch arithmetic, as the plan has it."""
        return self.plan.batch

    @property
    def lr(self) -> float:
        """The learning rate, already scaled by `train.lr_scale`."""
        return self.plan.lr.scaled

    @property
    def mode(self) -> str:
        """The mode's name in `spec/modes.py`."""
        return self.plan.mode

    @property
    def backend(self) -> str:
        """gloo, nccl or none."""
        return self.plan.backend

    @property
    def distributed(self) -> bool:
        """Whether there is a process group."""
        return self.backend != "none"

    @property
    def devices(self) -> tuple[str, ...]:
        """This rank's devices as torch names them ("cuda:0"); several only under DataParallel."""
        return tuple(d.torch for d in self.mine.devices)

    @property
    def labels(self) -> tuple[str, ...]:
        """The same devices as people know them, by the machine's own numbering."""
        return tuple(d.label for d in self.mine.devices)

    @property
    def cores(self) -> tuple[int, ...]:
        """The CPU cores that this rank is bound to; empty: not bound."""
        return self.mine.cores

    @property
    def micro(self) -> int:
        """Examples in one backward pass of this process, over its local replicas."""
        return self.batch.per_gpu * len(self.local_replicas)

    @property
    def local_replicas(self) -> range:
        """The numbers of the replicas in this process: one, or all of them under DataParallel."""
        replicas, ranks = self.batch.replicas, self.who.world_size
        first = self.who.rank * replicas // ranks
        return range(first, first + max(replicas // ranks, 1))

    @property
    def resume_from(self) -> str | None:
        """The name of the checkpoint that a person chose for this attempt; None: the newest one
        that can be loaded."""
        chosen = self.plan.resume_from
        return chosen.checkpoint if chosen is not None and chosen.attempt == self.attempt else None


def read(run: Path, env: Mapping[str, str]) -> Job:
    """The job of this process, from plan.json in the run folder and from the environment.

    Raises UserError if the plan can't be read or has no such rank.
    """
    path = run / "plan.json"
    try:
        plan = LaunchPlan.from_dict(json.loads(read_inside(run, "plan.json")))
    except (OSError, ValueError, RecursionError) as err:
        raise UserError(f"{path}: cannot be read: {err}") from err
    if plan is None:
        raise UserError(f"{path}: cannot be read: it holds no plan")
    return from_plan(plan, run, identify(env), int(env.get("GPU_PANEL_ATTEMPT") or 1))


def from_plan(plan: LaunchPlan, run: Path, who: Identity, attempt: int = 1) -> Job:
    """The job of rank `who.rank` under `plan`. Pure. Raises UserError."""
    mine = next((r for r in plan.ranks if r.rank == who.rank), None)
    if mine is None:
        there = ", ".join(str(r.rank) for r in plan.ranks)
        raise UserError(f"the plan has no rank {who.rank} on this node; it has {there}")
    if who.world_size != plan.world_size:
        raise UserError(f"the plan is for {plan.world_size} ranks, but this process was told "
                        f"that there are {who.world_size}")
    return Job(run=run, who=who, attempt=attempt, plan=plan, mine=mine)
