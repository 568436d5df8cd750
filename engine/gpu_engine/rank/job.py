"""The job of one rank: plan.json and the environment, read once. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.rank.identity import Identity, identify


@dataclass(frozen=True)
class Job:
    """What this rank is and what it does."""

    run: Path
    """The run folder."""
    who: Identity
    attempt: int
    mode: str
    """The name of its record in `plan/modes.py`."""
    backend: str
    """gloo, nccl or none."""
    node: int
    nodes: int
    devices: tuple[str, ...]
    """This rank's devices as torch names them ("cuda:0"); several under dp."""
    labels: tuple[str, ...]
    """The same for people, by the machine's own numbering."""
    cores: tuple[int, ...]
    """The CPU cores this rank keeps to; empty: any."""
    replicas: int
    per_gpu: int
    """Examples of one replica in one backward pass."""
    accumulate: int
    global_size: int
    """per_gpu × replicas × accumulate."""
    lr: float
    spec: Mapping[str, Any] = field(repr=False)
    resume_from: str | None = None
    """The name of the checkpoint that this attempt goes on from; None: the newest that loads."""

    @property
    def micro(self) -> int:
        """Examples in one backward pass of this process."""
        return self.per_gpu * len(self.local_replicas)

    @property
    def local_replicas(self) -> range:
        """Which of the replicas train in this process: one, under DataParallel all."""
        ranks = self.who.world_size
        first = self.who.rank * self.replicas // ranks
        return range(first, first + max(self.replicas // ranks, 1))

    @property
    def distributed(self) -> bool:
        """Whether there is a process group."""
        return self.backend != "none"

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the spec by its dotted key."""
        section, _, name = key.partition(".")
        return self.spec.get(section, {}).get(name, default)


def read(run: Path, env: Mapping[str, str]) -> Job:
    """The job that RUN/plan.json and the environment give this process.

    Raises UserError where the plan can't be read or has no such rank.
    """
    path = run / "plan.json"
    try:
        plan = json.loads(path.read_text())
    except (OSError, ValueError) as err:
        raise UserError(f"{path}: cannot be read: {err}") from err
    return from_plan(plan, run, identify(env), int(env.get("GPU_PANEL_ATTEMPT") or 1))


def from_plan(plan: Mapping[str, Any], run: Path, who: Identity, attempt: int = 1) -> Job:
    """The job of rank `who.rank` under `plan`. Pure. Raises UserError."""
    mine = next((r for r in plan["ranks"] if r["rank"] == who.rank), None)
    if mine is None:
        there = ", ".join(str(r["rank"]) for r in plan["ranks"])
        raise UserError(f"the plan has no rank {who.rank} on this node; it has {there}")
    if who.world_size != plan["world_size"]:
        raise UserError(f"the plan is for {plan['world_size']} ranks, but this process was told "
                        f"that there are {who.world_size}")
    batch = plan["batch"]
    devices = mine["devices"]
    cores = sorted({c for d in devices for c in d.get("cores") or ()})
    chosen = plan.get("resume_from") or {}
    return Job(
        run=run, who=who, attempt=attempt, mode=plan["mode"],
        backend=plan.get("backend") or "none", node=mine.get("node", plan.get("node_rank", 0)),
        nodes=plan.get("nodes", 1), devices=tuple(d["torch"] for d in devices),
        labels=tuple(d.get("label") or d["id"] for d in devices), cores=tuple(cores),
        replicas=batch["replicas"], per_gpu=batch["per_gpu"], accumulate=batch["accumulate"],
        global_size=batch["global_size"], lr=float(plan["lr"]["scaled"]), spec=plan["spec"],
        resume_from=chosen["checkpoint"] if chosen.get("attempt") == attempt else None)
