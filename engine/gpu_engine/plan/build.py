"""RunSpec + devices → LaunchPlan: what the screen shows is what runs.

Pure: no I/O, no clock, no torch. `check` says what does not fit and works out the batch,
`resolve` the rest: the processes that this node's supervisor will start (argument lists and
environment), and the lines a person would type for the same run. Both come from here and from
nowhere else, for a rank that torchrun or srun has started as well.

What only the machine can answer (is the port free, is there such a task) `launch.preflight` asks.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from gpu_engine.common import units
from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.plan import own_command, without_effect
from gpu_engine.plan.batch import Layout, backend_of, learning_rate, ranks_a_node
from gpu_engine.plan.check import Checked, check
from gpu_engine.plan.own_command import HOOK
from gpu_engine.plan.records import RUN_DIR, WORKER, DeviceUse, LaunchPlan, Process, RankPlan
from gpu_engine.spec import modes
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import differences, for_people, to_dict


def plan(spec: RunSpec, inventory: Inventory, *, python: str,
         base: tuple[str, RunSpec] | None = None, environ: Mapping[str, str] | None = None,
         layout: Layout | None = None) -> LaunchPlan:
    """Check and resolve `spec` on this machine; see `check` and `resolve`. Raises SpecError."""
    return resolve(check(spec, inventory, layout), python=python, base=base, environ=environ)


def resolve(checked: Checked, *, python: str, base: tuple[str, RunSpec] | None = None,
            environ: Mapping[str, str] | None = None) -> LaunchPlan:
    """Make the plan of a checked spec. Raises SpecError with all problems that were found.

    python: the interpreter for the ranks, if the spec names none.
    base: the preset (its name or path, and its spec) that the command line may name.
    environ: the environment that the processes inherit.
    For a rank that a person's own launcher has started, no processes and command lines are planned,
    as it runs already.
    """
    spec, layout, batch = checked.spec, checked.layout, checked.batch
    if checked.problems or batch is None:
        raise SpecError(checked.problems)
    p = spec.parallel
    cpu = checked.devices[0].is_cpu
    resolved = LaunchPlan(
        name=spec.name, mode=p.mode, backend=backend_of(spec, cpu=cpu),
        device_type=registry.torch_type(checked.source), source=checked.source,
        world_size=layout.world_size, local_world_size=layout.local_world_size, nodes=layout.nodes,
        node_rank=layout.node, master_addr=layout.master_addr, master_port=layout.master_port,
        batch=batch, lr=learning_rate(spec, batch.global_size), ranks=_ranks(checked), spec=spec,
        unit="slot" if cpu else "GPU",
    )
    if layout.launched_by is not None:
        return resolved
    devices, own, warnings = checked.devices, spec.run.python, []
    if modes.get(p.mode).several_nodes and (
            p.master_addr == "localhost" or p.master_addr.startswith("127.")):
        warnings.append(f"{p.master_addr} is this machine itself: other machines can't meet there")
    said = own_command.said(own_command.fill(spec.task.command or (), placeholders(resolved)))
    ranks, many = said.ranks, len({d.id for d in devices})
    if layout.nodes > 1:
        many = resolved.world_size if said.in_all else resolved.local_world_size
        if ranks is not None and ranks[1] != many:  # each host's ranks are known by their numbers
            where = "in all" if said.in_all else f"on node {layout.node}"
            raise SpecError([Problem(
                "task.command", ranks[0], f"starts {units.counted(ranks[1], 'rank')}, and the run "
                f"has {units.counted(many, 'device')} {where}: give as many devices as ranks")])
    elif ranks is not None and ranks[1] != many and not cpu:
        warnings.append(f"your command starts {units.counted(ranks[1], 'rank')} ({ranks[0]}), "
                        f"and the run has {units.counted(many, 'GPU')}: for a GPU each, "
                        f"--mode ddp -n {ranks[1]}")
    return replace(
        resolved, warnings=tuple(warnings),
        processes=processes(resolved, devices, python=own or python, environ=environ or {}),
        lines=lines(resolved, devices, base=base, python=own or "python"))


def _ranks(checked: Checked) -> tuple[RankPlan, ...]:
    """The devices of each rank. With DDP a rank sees all GPUs of the run, as with torchrun, and
    uses cuda:local_rank; a MIG slice is the only device of its process, so it is cuda:0."""
    devices, layout = checked.devices, checked.layout
    seen = list(dict.fromkeys(d.id for d in devices))  # a repeated GPU is visible once
    alone = any(d.is_slice for d in devices)
    kind = registry.torch_type(checked.source)

    def use(device: Device) -> DeviceUse:
        if kind == "cpu":  # there is one
            name = kind
        elif layout.launched_by is not None:  # which devices are visible was the launcher's choice
            name = f"{kind}:{device.visible_index}"
        else:
            name = f"{kind}:{0 if alone else seen.index(device.id)}"
        return DeviceUse(device.id, device.label, device.uuid, name, device.cores,
                         device.memory_total)

    if not modes.get(checked.spec.parallel.mode).process_a_device:
        return (RankPlan(layout.first_rank, layout.first_local_rank, layout.node,
                         tuple(use(d) for d in devices)),)
    return tuple(RankPlan(layout.first_rank + i, layout.first_local_rank + i, layout.node,
                          (use(devices[i]),)) for i in range(layout.ranks))


# --- the processes: argument lists and environment, ready for `Popen` ----------------------------


def processes(plan: LaunchPlan, devices: Sequence[Device], *, python: str,
              environ: Mapping[str, str]) -> tuple[Process, ...]:
    """The processes that this node's supervisor starts."""
    given, command = plan.spec.run.env, plan.spec.task.command
    environ = {**environ, **given}

    def process(argv: tuple[str, ...], ranks: Sequence[RankPlan], used: Sequence[Device],
                more: Mapping[str, str], log: str, cores: tuple[int, ...] = (),
                role: Literal["rank", "launcher"] = "rank") -> Process:
        env = {**given, **registry.environment(plan.source, used), **more,
               **_observed(plan, ranks, environ)}
        return Process(argv, env, tuple(r.rank for r in ranks), role, cores, log,
                       registry.load(plan.source).cleared)

    def threads(count: int | None) -> dict[str, str]:
        """A slot's cores, or torchrun's 1 for several ranks a machine; a value that the person has
        set stays."""
        set_here = count is not None and "OMP_NUM_THREADS" not in environ
        return {"OMP_NUM_THREADS": str(count)} if set_here else {}

    argv = (python, WORKER, "--run", RUN_DIR) if command is None else \
        own_command.fill(command, placeholders(plan))
    mode, launcher = modes.get(plan.mode), plan.spec.parallel.launcher
    # A rank may run on the cores of all slots of the run: on those of its own slot, torch's and
    # gloo's threads would wait for each other (7.4 ms a step of two ranks, and 4.5 so).
    cores = tuple(sorted({c for d in devices for c in d.cores}))
    if not mode.process_a_device or (command and own_command.launches_itself(command)):
        return (process(argv, plan.ranks, devices, threads(len(cores) or None),
                        f"ranks/{plan.ranks[0].rank:05d}.log", cores),)
    if (mode.launcher if launcher == "auto" else launcher) == "torchrun":
        options = torchrun_options(plan)
        if command is not None:
            # A script's output goes to files a rank, which torchrun names in its own way.
            options += ("--redirects=3", f"--log-dir={RUN_DIR}/torchrun")
        # The agent's own few lines must not wait in a buffer (measured: up to 3 s).
        return (process(own_command.under_torchrun(argv, options), plan.ranks, devices,
                        {"PYTHONUNBUFFERED": "1"}, f"node{plan.node_rank}.log", role="launcher"),)
    out = []
    for i, rank in enumerate(plan.ranks):
        mine = devices[i]
        more = threads(len(mine.cores) or (1 if plan.local_world_size > 1 else None)) | {
            "RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank),
            "WORLD_SIZE": str(plan.world_size), "LOCAL_WORLD_SIZE": str(plan.local_world_size),
            "GROUP_RANK": str(plan.node_rank), "GROUP_WORLD_SIZE": str(plan.nodes),
            "MASTER_ADDR": plan.master_addr, "MASTER_PORT": str(plan.master_port)}
        out.append(process(argv, [rank], [mine] if mine.is_slice else devices, more,
                           f"ranks/{rank.rank:05d}.log", cores))
    return tuple(out)


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
    """What `{…}` in a person's own command stands for, but for the run folder, and for a port that
    is not known yet."""
    train = plan.spec.train
    known: dict[str, object] = {
        "batch.per_gpu": plan.batch.per_gpu, "batch.global": plan.batch.global_size,
        "batch.size": plan.batch.size, "batch.accumulate": plan.batch.accumulate,
        "lr": _exact(plan.lr.scaled), "world_size": plan.world_size, "replicas": plan.replicas,
        "nodes": plan.nodes, "node_rank": plan.node_rank, "master_addr": plan.master_addr,
        "amp": plan.spec.amp.dtype, "epochs": train.epochs or 1, "steps": train.steps or 0,
        "seed": train.seed, "workers": train.workers, "run.name": plan.name}
    return known | ({"master_port": plan.master_port} if plan.master_port else {})


def _observed(plan: LaunchPlan, ranks: Sequence[RankPlan], environ: Mapping[str, str]
              ) -> dict[str, str]:
    """The environment with which a person's own command is observed: the hook, first on the
    PYTHONPATH, and the command's ranks and devices. Empty for a task, which needs no hook."""
    if plan.spec.task.command is None:
        return {}
    inherited = environ.get("PYTHONPATH")
    before = [p for p in inherited.split(os.pathsep) if p != HOOK] if inherited else []
    labels = [d.label for r in ranks for d in r.devices]
    run = plan.spec.run
    asked = {"GPU_PANEL_GRAD_NORM": run.grad_norm, "GPU_PANEL_OOM_SNAPSHOT": run.oom_snapshot}
    return {name: str(int(value)) for name, value in asked.items() if value} | {
        "PYTHONPATH": os.pathsep.join([HOOK, *before]), "GPU_PANEL_RANK": str(ranks[0].rank),
        "GPU_PANEL_DEVICES": ";".join(labels)}


def _exact(value: float) -> str:
    """All digits of a number, and no more: "9", "0.0003", "0.30000000000000004"."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


# --- the command line with which a person or a script would start the same run -------------------


def lines(plan: LaunchPlan, devices: Sequence[Device], *, base: tuple[str, RunSpec] | None,
          python: str) -> tuple[str, ...]:
    """One line for one machine; for several, node 0's first. Secrets are masked in it."""
    given, base = for_people(plan.spec), _for_people(base)
    command = given.task.command
    many = plan.nodes > 1
    if command is None and not many:
        return (engine_line(given, base),)
    env = {**given.run.env, **registry.environment(plan.source, devices)}
    unset = registry.load(plan.source).cleared
    if command is None and (without_effect.refused(given, without_effect.BY_HAND)
                            or without_effect.told(given, without_effect.BY_HAND)):
        # Below torchrun it would not be this run.
        return tuple(engine_line(replace(given, parallel=replace(given.parallel, node_rank=node)),
                                 base) for node in range(plan.nodes))
    if command is None:
        # The keys that torchrun's options give already can't disagree with them.
        fresh = RunSpec().parallel
        spec = replace(given, parallel=replace(
            given.parallel, node_rank=fresh.node_rank, master_addr=fresh.master_addr,
            master_port=fresh.master_port))
        argv = (python, "-m", "gpu_engine.worker", *arguments(spec, base))
    else:
        known = placeholders(replace(plan, master_port=plan.master_port or modes.MEETING_PORT))
        argv = own_command.fill(command, known)
        if not modes.get(plan.mode).process_a_device or own_command.launches_itself(command):
            return tuple(typed(env, unset, own_command.fill(command, known | {"node_rank": node}))
                         for node in range(plan.nodes))
    return tuple(
        typed(env, unset, own_command.under_torchrun(argv, torchrun_options(plan, node_rank=node)))
        for node in range(plan.nodes))


def engine_line(spec: RunSpec, base: tuple[str, RunSpec] | None) -> str:
    """The `gpu-engine run` command line for a spec, with secrets masked."""
    queue = ["--queue"] if spec.run.give_way else []  # it is refused without
    return " ".join(map(quoted, [
        "gpu-engine", "run", *queue, *arguments(for_people(spec), _for_people(base))]))


def _for_people(base: tuple[str, RunSpec] | None) -> tuple[str, RunSpec] | None:
    return None if base is None else (base[0], for_people(base[1]))


def typed(env: Mapping[str, str], unset: Sequence[str], argv: Sequence[str]) -> str:
    """A command line for a shell: `argv` with `env` added to its environment, and without `unset`.
    """
    without = ["env", *(word for name in unset for word in ("-u", name))] if unset else []
    shown = [f"{key}={quoted(value)}" for key, value in env.items()]
    return " ".join([*without, *shown, *map(quoted, argv)])


def quoted(word: str) -> str:
    """A word as a shell reads it. What can't be seen, as escapes and bytes that are no text, is
    written as $'…', which bash, zsh and POSIX.1-2024 know: a line is looked at before it is
    run."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else
        "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in word) + "'"


def arguments(spec: RunSpec, base: tuple[str, RunSpec] | None) -> list[str]:
    """The preset and the `--set`s that give exactly this spec; from the defaults where there is no
    preset, or it holds something that the spec has not."""
    name: list[str] = []
    sets = differences(RunSpec(), spec)
    if base is not None:
        changes, data = differences(base[1], spec), to_dict(base[1], defaults=False)
        with contextlib.suppress(SpecError):
            apply_sets(data, changes)
            if from_dict(data) == spec:
                name, sets = [base[0]], changes
    return [*name, *(word for assignment in sets for word in ("--set", assignment))]
