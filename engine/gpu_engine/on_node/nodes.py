"""What the nodes of one job tell each other, in the run folder that they share.

The first node's supervisor is the run's: its state, plan and checkpoints are in the folder itself.
The others have theirs in `nodes/1`, `nodes/2`, …; all ranks write into the same `ranks/`. The first
node looks at all others, and they at the first, so that an attempt that has failed on one node ends
on all, and all begin the next.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside, take_lock, write_json_inside
from gpu_engine.common.paths import private_folder
from gpu_engine.events.paths import NODES
from gpu_engine.plan.records import LaunchPlan, RankPlan
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run
from gpu_engine.runs.job import Job
from gpu_engine.runs.state import FINAL, Cause, State
from gpu_engine.slurm import commands
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.spec.schema import RunSpec
from gpu_engine.worker.rank.job import first_host

_COMING = 120.0
"""Seconds within which all nodes of a job begin: they import the same files from one disk."""
_LOOK = 2.0
"""Seconds between two looks at other nodes."""
_GONE = 10.0
"""Seconds for which another node's lock is free, and its state no end, before it is lost."""
_PORTS = 20_000
_READY = "ready.json"


@dataclass(frozen=True, slots=True)
class Here:
    """Which of the job's nodes this is."""

    node: int
    nodes: int
    name: str

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> Here:
        """As srun says to its task."""
        count = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
        return cls(int(environ.get("SLURM_NODEID") or 0), int(count),
                   environ.get("SLURMD_NODENAME") or socket.gethostname())


def spec_of(spec: RunSpec, here: Here, job: Job, count: int) -> RunSpec:
    """The part of the spec that this node runs, with `count` devices. All nodes meet at an address
    of the first one. Raises UserError where it has none that others can reach."""
    if here.nodes == 1:
        return spec
    place = spec.parallel
    return replace(spec, parallel=replace(
        place, node_rank=here.node, node_devices=[count] * here.nodes,
        launcher="direct" if place.launcher == "auto" else place.launcher,
        master_addr=_address(first_host(job.nodes or here.name)),
        master_port=_PORTS + job.id % _PORTS))


def _address(name: str) -> str:
    """A numeric address of the node: its own name often means 127.0.1.1 on it, so that Slurm is
    asked as well. Raises UserError."""
    said = ""
    with contextlib.suppress(SlurmError):
        said = commands.call(["scontrol", "--oneliner", "show", "node", name])
    known = [word.partition("=")[2] for word in said.split() if word.startswith("NodeAddr=")]
    for one in (name, *known):
        try:
            found = [str(info[4][0]) for info in socket.getaddrinfo(
                one, None, type=socket.SOCK_STREAM)]
        except OSError:
            continue
        for address in found:
            if not address.startswith(("127.", "0.", "::1", "fe80:")):
                return address
    raise UserError(f"the first node, {name}, has no address that others can reach")


# --- beginning together --------------------------------------------------------------------------

def call(run: Run, job: Job, here: Here) -> None:
    """On the first node, whose folder is open for the next attempt: the others may come. Raises
    OSError."""
    private_folder(run.path / NODES)
    _sign(run.path / NODES, job, here)


def await_call(run: Run, job: Job) -> None:
    """On another node: wait for the first one's call. Raises UserError."""
    _until(lambda: _signed(run.path / NODES, job), "the first node of the job")


def join(run: Run, job: Job, here: Here, plan: LaunchPlan) -> int:
    """On another node, once the first one has called: take a place beside it. Returns the
    descriptor that holds this node's lock. Raises UserError, OSError."""
    first = Run(run.path)
    called = first.recorded()
    private_folder(run.own)
    lock = lock_of(run.own)
    if called is None or not take_lock(lock):
        raise UserError(f"{run.own}: another process holds it, or the first node has ended")
    write_json_inside(run.own, "plan.json", replace(
        plan, id=run.id, cwd=first.cwd(), copy=first.require_plan().copy,
        resume_from=first.require_plan().resume_from).to_dict())
    run.write_state(State("queued", called.id, called.name, called.created, attempt=called.attempt))
    _sign(run.own, job, here)
    return lock


def gather(run: Run, job: Job, here: Here) -> None:
    """On the first node: wait for the others, and note in the run's plan what they have of it.
    Raises UserError where one does not come, OSError."""
    plan, ranks = run.require_plan(), list[RankPlan]()
    for node in range(1, here.nodes):
        other = Run(run.path, node)
        name = _until(lambda other=other: _signed(other.own, job),
                      f"node {node} of the {here.nodes} of the job")
        ranks += [replace(rank, host=name) for rank in other.require_plan().ranks]
    write_json_inside(run.path, "plan.json", replace(plan, ranks=(*plan.ranks, *ranks)).to_dict())


def _sign(folder: Path, job: Job, here: Here) -> None:
    write_json_inside(folder, _READY, {"job": job.id, "restarts": job.restarts, "name": here.name})


def _signed(folder: Path, job: Job) -> str | None:
    """The name of the node that has signed there in this start of the job; None: none has."""
    said = json_inside(folder, _READY)
    if isinstance(said, dict) and (said.get("job"), said.get("restarts")) == (job.id, job.restarts):
        return clean(str(said.get("name")), 64)
    return None


def _name(run: Run) -> str:
    """The name of this node, as it has signed."""
    folder = run.own if run.node else run.path / NODES
    said = json_inside(folder, _READY)
    return clean(str(said.get("name")), 64) if isinstance(said, dict) else f"node {run.node}"


def _until(signed: Callable[[], str | None], who: str) -> str:
    """What `signed` returns once it does. Raises UserError."""
    end = time.monotonic() + _COMING
    while (found := signed()) is None:
        if time.monotonic() >= end:
            raise UserError(f"{who} has not begun within {_COMING:.0f} s")
        time.sleep(0.1)
    return found


# --- ending together -----------------------------------------------------------------------------

class Beside:
    """Looks at the other nodes, for the supervisor of this one."""

    def __init__(self, run: Run, here: Here) -> None:
        self._others = [Run(run.path, node)
                        for node in (range(1, here.nodes) if here.node == 0 else (0,))]
        self._due = 0.0

    def __call__(self, attempt: int) -> Cause | None:
        """Why this attempt can't go on: it has failed on another node; None: it can."""
        if time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + _LOOK
        for other in self._others:
            state = other.recorded()
            failed = None if state is None else next(
                (a for a in state.attempts if a.number >= attempt and a.outcome == "failed"), None)
            if state is not None and (failed is not None or state.state == "failed"):
                why = (failed and failed.reason) or state.reason or "it has failed"
                cause = state.cause or Cause(why)
                return replace(cause, host=cause.host or _name(other))
        return None


def await_ends(runs: Sequence[Run], seconds: float) -> list[State]:
    """The states of these nodes that have ended, once all have; those that have within `seconds`,
    or until the supervisors of the others are seen to be gone."""
    end, seen = time.monotonic() + seconds, time.monotonic()
    while True:
        states = [state for run in runs if (state := run.recorded()) and state.state in FINAL]
        if sum(run.supervised() for run in runs) + len(states) >= len(runs):
            seen = time.monotonic()
        # Not at once: what another node writes may take a while to be seen here.
        if len(states) == len(runs) or time.monotonic() >= min(end, seen + _GONE):
            return states
        time.sleep(0.2)
