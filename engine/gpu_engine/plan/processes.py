"""The processes of a plan: argument lists and environment, ready for `Popen`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Device
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import ranks_a_node
from gpu_engine.plan.records import RUN_DIR, WORKER, LaunchPlan, Process
from gpu_engine.spec import modes

HOOK = str(Path(__file__).parents[1] / "observe" / "hook")
"""The folder whose sitecustomize lets a person's own command be seen; see observe/install.py."""


def processes(plan: LaunchPlan, devices: Sequence[Device], *, python: str,
              environ: Mapping[str, str]) -> tuple[Process, ...]:
    """The processes that this node's supervisor starts."""
    given = plan.spec.run.env
    return tuple(replace(p, env={**given, **p.env}) for p in _processes(
        plan, devices, python, {**environ, **given}))


def _processes(plan: LaunchPlan, devices: Sequence[Device], python: str,
               environ: Mapping[str, str]) -> tuple[Process, ...]:
    command = plan.spec.task.command
    if command is None:
        argv: tuple[str, ...] = (python, WORKER, "--run", RUN_DIR)
    else:
        argv = own_command.fill(command, placeholders(plan))
    once = command is not None and own_command.launches_itself(command)
    mode, launcher = modes.get(plan.mode), plan.spec.parallel.launcher
    if once or not mode.process_a_device:
        return (_once(plan, devices, argv, environ),)
    if (mode.launcher if launcher == "auto" else launcher) == "torchrun":
        return (_torchrun(plan, devices, argv, environ),)
    return tuple(_rank(plan, i, devices, argv, environ)
                 for i in range(plan.local_world_size))


def torchrun_options(plan: LaunchPlan, *, node_rank: int | None = None) -> tuple[str, ...]:
    """Static rendezvous: ranks in node order, and no pickle on the rendezvous port."""
    if plan.nodes == 1:
        return ("--standalone", f"--nproc-per-node={plan.local_world_size}")
    node = plan.node_rank if node_rank is None else node_rank
    local = ranks_a_node(plan.spec, plan.local_world_size)[node]
    return (f"--nnodes={plan.nodes}", f"--nproc-per-node={local}", f"--node-rank={node}",
            f"--master-addr={plan.master_addr}", f"--master-port={plan.master_port}",
            # Its agents wait ten minutes in silence for a node that does not come.
            f"--rdzv-conf=timeout={max(int(plan.spec.parallel.timeout), 1)}")


def placeholders(plan: LaunchPlan) -> dict[str, object]:
    """What `{…}` in a person's own command stands for, but for the run folder."""
    train = plan.spec.train
    return {"batch.per_gpu": plan.batch.per_gpu, "batch.global": plan.batch.global_size,
            "batch.size": plan.batch.size, "batch.accumulate": plan.batch.accumulate,
            "lr": _exact(plan.lr.scaled), "world_size": plan.world_size, "replicas": plan.replicas,
            "nodes": plan.nodes, "node_rank": plan.node_rank, "amp": plan.spec.amp.dtype,
            "epochs": train.epochs or 1, "steps": train.steps or 0, "seed": train.seed,
            "workers": train.workers, "run.name": plan.name}


def _once(plan: LaunchPlan, devices: Sequence[Device],
          argv: tuple[str, ...], environ: Mapping[str, str]) -> Process:
    cores = tuple(sorted({c for d in devices for c in d.cores}))
    env = registry.environment(plan.source, devices) | _threads(len(cores) or None, environ)
    env |= _observed(plan, [r.rank for r in plan.ranks], environ)
    first = plan.ranks[0].rank
    return Process(argv, env, tuple(r.rank for r in plan.ranks), "rank", cores,
                   f"ranks/{first:05d}.log", registry.load(plan.source).cleared)


def _rank(plan: LaunchPlan, i: int, devices: Sequence[Device],
          argv: tuple[str, ...], environ: Mapping[str, str]) -> Process:
    rank, mine = plan.ranks[i], devices[i]
    shown = registry.environment(plan.source, [mine] if mine.is_slice else devices)
    env = shown | _threads(len(mine.cores) or (1 if plan.local_world_size > 1 else None), environ)
    env |= {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank),
            "WORLD_SIZE": str(plan.world_size), "LOCAL_WORLD_SIZE": str(plan.local_world_size),
            "GROUP_RANK": str(plan.node_rank), "GROUP_WORLD_SIZE": str(plan.nodes),
            "MASTER_ADDR": plan.master_addr, "MASTER_PORT": str(plan.master_port)}
    env |= _observed(plan, [rank.rank], environ)
    return Process(argv, env, (rank.rank,), "rank", mine.cores, f"ranks/{rank.rank:05d}.log",
                   registry.load(plan.source).cleared)


def _torchrun(plan: LaunchPlan, devices: Sequence[Device],
              argv: tuple[str, ...], environ: Mapping[str, str]) -> Process:
    options = torchrun_options(plan)
    if plan.spec.task.command is not None:
        # A script's output goes to files a rank, which torchrun names in its own way.
        options += ("--redirects=3", f"--log-dir={RUN_DIR}/torchrun")
    whole = own_command.under_torchrun(argv, options)
    # The agent's own few lines must not wait in a buffer (measured: up to 3 s).
    env = registry.environment(plan.source, devices) | {"PYTHONUNBUFFERED": "1"}
    env |= _observed(plan, [r.rank for r in plan.ranks], environ)
    return Process(whole, env, tuple(r.rank for r in plan.ranks), "launcher", (),
                   f"node{plan.node_rank}.log", registry.load(plan.source).cleared)


def _observed(plan: LaunchPlan, ranks: Sequence[int], environ: Mapping[str, str]
              ) -> dict[str, str]:
    """The environment with which a person's own command is observed: the hook, first on the
    PYTHONPATH, and the command's ranks and devices. Empty for a task, which needs no hook."""
    if plan.spec.task.command is None:
        return {}
    inherited = environ.get("PYTHONPATH")
    before = [p for p in inherited.split(os.pathsep) if p != HOOK] if inherited else []
    labels = [d.label for r in plan.ranks if r.rank in ranks for d in r.devices]
    run = plan.spec.run
    asked = {"GPU_PANEL_GRAD_NORM": run.grad_norm, "GPU_PANEL_OOM_SNAPSHOT": run.oom_snapshot}
    return {name: str(int(value)) for name, value in asked.items() if value} | {
        "PYTHONPATH": os.pathsep.join([HOOK, *before]), "GPU_PANEL_RANK": str(ranks[0]),
        "GPU_PANEL_DEVICES": ";".join(labels)}


def _threads(count: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """OMP_NUM_THREADS: a slot's cores, or torchrun's 1 for several ranks a machine; a value
    that the person has set stays."""
    if count is None or "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(count)}


def _exact(value: float) -> str:
    """All digits of a number, and no more: "9", "0.0003", "0.30000000000000004"."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
