"""The job of one rank: which rank this process is, according to the launcher that started
it, and its part of the plan. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_inside
from gpu_engine.events.paths import NODES
from gpu_engine.plan.batch import Batch
from gpu_engine.plan.records import LaunchPlan, RankPlan
from gpu_engine.spec.schema import RunSpec


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
    def distributed(self) -> bool:
        """Whether there is a process group."""
        return self.plan.backend != "none"

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
        """The CPU cores that this rank keeps to, those of all slots that the run has on this
        machine; empty: any."""
        return tuple(sorted({c for r in self.plan.ranks if r.node == self.mine.node
                             for c in r.cores}))

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
    node = env.get("GPU_PANEL_NODE", "")  # of a Slurm job, whose nodes share the folder
    name = f"{NODES}/{int(node)}/plan.json" if node.isdecimal() else "plan.json"
    path = run / name
    try:
        plan = LaunchPlan.from_dict(json.loads(read_inside(run, name)))
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
        raise UserError(f"the plan's world size is {plan.world_size}, but this process was told "
                        f"{who.world_size}")
    return Job(run=run, who=who, attempt=attempt, plan=plan, mine=mine)

# ------------------------------------------------------------------------------------------------
# Which rank this process is, and of how many, according to the launcher that started it.


@dataclass(frozen=True)
class Identity:
    """A process's place among all ranks."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str | None = None
    master_port: int | None = None
    source: str = "alone"
    """Where this was read from: arguments, torchrun, srun or alone."""
    node: int = 0
    """The node rank: the number of this machine."""
    nodes: int = 1


def identify(env: Mapping[str, str], *, init_method: str | None = None, rank: int | None = None,
             world_size: int | None = None) -> Identity:
    """Rank and world size, from the arguments, else from the environment variables of torchrun
    or srun; without any of them, a single rank. Raises UserError if they contradict each other or
    are incomplete."""
    if init_method is not None or rank is not None or world_size is not None:
        return _from_arguments(env, init_method, rank, world_size)
    if "RANK" in env and "WORLD_SIZE" in env:
        who = _from_variables(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE")
    # The shell of an sbatch script has SLURM_PROCID too, but ranks exist only inside a step.
    elif "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        who = _from_variables(env, "srun", "SLURM_PROCID", size, "SLURM_LOCALID", "")
    else:
        return Identity(master_addr=env.get("MASTER_ADDR"), master_port=_port(env))
    if who.world_size > 1 and (who.master_addr is None or who.master_port is None):
        raise UserError(f"started by {who.source} as rank {who.rank} of {who.world_size}, but "
                        "MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    return who


def first_host(nodelist: str) -> str:
    """The first host of Slurm's compressed list: "gpu[03-05,9],login1" → "gpu03". Raises
    UserError for a text that is no such list."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    if match is None:
        raise UserError(f"not a list of hosts: {nodelist!r}")
    return (match[1] + (match[2] or "") + (match[3] or "")).strip()


def _from_variables(env: Mapping[str, str], source: str, rank: str, size: str, local: str,
                    local_size: str) -> Identity:
    r, w = _number(env, rank), _number(env, size)
    if r is None or w is None or not 0 <= r < w:
        raise UserError(f"{rank}={env.get(rank)} and {size}={env.get(size)} "
                        "don't name a rank among a number of ranks")
    addr, port = env.get("MASTER_ADDR"), _port(env)
    lr, lw = _number(env, local), _number(env, local_size)
    if source == "srun":
        on = _number(env, "SLURM_STEP_NUM_NODES")
        lw = -(-w // on) if on else _number(env, "SLURM_NTASKS_PER_NODE")
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
        addr = addr or (first_host(nodes) if nodes else None)
        # Every node works out the same port from the number of the job.
        port = port or 20000 + (_number(env, "SLURM_JOB_ID") or 0) % 20000
    lw = max(w if lw is None else lw, 1)
    node, nodes = _number(env, _NODE.get(source, ("", ""))[0]), None
    if node is not None:
        nodes = _number(env, _NODE[source][1])
    return Identity(r, w, r % lw if lr is None else lr, lw, addr, port, source,
                    r // lw if node is None else node, nodes or -(-w // lw))


_NODE = {"torchrun": ("GROUP_RANK", "GROUP_WORLD_SIZE"),
         "srun": ("SLURM_NODEID", "SLURM_STEP_NUM_NODES")}
"""The variables in which a launcher gives the node rank and the number of nodes."""


def _from_arguments(env: Mapping[str, str], init_method: str | None, rank: int | None,
                    world_size: int | None) -> Identity:
    if init_method is None or rank is None or world_size is None:
        raise UserError("--init-method, --rank and --world-size go together")
    url = urlsplit(init_method)
    if url.scheme != "tcp" or not url.hostname or not url.port:
        raise UserError(f"--init-method {init_method}: expected tcp://host:port")
    if not 0 <= rank < world_size:
        raise UserError(f"--rank {rank} --world-size {world_size}: the rank must be "
                        f"between 0 and {world_size - 1}")
    local = _number(env, "LOCAL_RANK")
    local_size = max(_number(env, "LOCAL_WORLD_SIZE") or world_size, 1)
    return Identity(rank, world_size, rank if local is None else local, local_size, url.hostname,
                    url.port, "arguments", rank // local_size, -(-world_size // local_size))


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    # Slurm may write "4(x2)" for the same number on several nodes.
    match = re.match(r"\d+", text) if text else None
    return int(match[0]) if match else None


def _port(env: Mapping[str, str]) -> int | None:
    return _number(env, "MASTER_PORT")
