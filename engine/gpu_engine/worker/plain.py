"""Training without panel and supervisor: under plain torchrun, srun, mpirun, or started by hand
with `--init-method tcp://host:port --rank R --world-size W`.

    torchrun --nproc-per-node 2 -m gpu_engine.worker ddp --set batch.size=64

Where each rank runs and how many there are is the launcher's business; the preset says the
rest. Here gpu_engine is installed, so its presets, plan and run folders are used, and the panel
can follow the run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import torch

from gpu_engine import presets, procs, runs
from gpu_engine.arithmetic import batch_of, learning_rate, nearest_batches
from gpu_engine.errors import UserError
from gpu_engine.files import write_json
from gpu_engine.spec import RunSpec, apply_sets, from_dict, to_dict, to_toml
from gpu_engine.worker.identity import Identity, identify
from gpu_engine.worker.job import Job, from_plan
from gpu_engine.worker.process_group import Group, join


class Plain:
    """One rank's job and its place among the ranks, and the run folder that rank 0 keeps."""

    def __init__(self, args: argparse.Namespace, env: MutableMapping[str, str]) -> None:
        """Meet the other ranks and agree on a run folder. Raises UserError."""
        spec = read_spec(args.preset, args.sets)
        who = identify(env, init_method=args.init_method, rank=args.rank,
                       world_size=args.world_size)
        plan = resolve(spec, who, devices_here(spec, who))
        self._state: runs.State | None = None
        self._run: runs.Run | None = None
        if plan["backend"] != "none" and who.master_addr is None:
            who = Identity(who.rank, who.world_size, who.local_rank, who.local_world_size,
                           "127.0.0.1", 0, who.source)
        first = torch.device(plan["ranks"][0]["devices"][0]["torch"])
        if first.type == "cuda":
            torch.cuda.set_device(first)
        self.group: Group = join(who, plan["backend"], spec.parallel.timeout, nodes=plan["nodes"],
                                 device=first)
        self.job: Job = from_plan(plan, self._folder(spec, plan, who), who)

    def _folder(self, spec: RunSpec, plan: dict[str, Any], who: Identity) -> Path:
        """The same run folder for all ranks; on another machine one of the same name."""
        shown = ""
        if who.rank == 0:
            # The lock is held as long as this process lives.
            self._run, self._lock = runs.create(spec.name, to_toml(spec), _of_node(plan))
            now = time.time()
            self._state = runs.State(
                "running", self._run.id, spec.name, now, started=now, pid=os.getpid(),
                ticks=procs.start_ticks(os.getpid()), boot=procs.boot_id(),
                reason=f"started by {who.source}, not by gpu-panel")
            self._run.write_state(self._state)
            shown = str(self._run.path)
        path = Path(self.group.from_first(shown))
        if not (path / "plan.json").exists():
            path = runs.private_folder(runs.runs_folder()) / path.name
            (path / "ranks").mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(path / "plan.json", plan)
        return path

    def ended(self, outcome: str) -> None:
        """Write down how it ended: rank 0 does what a supervisor would."""
        if self._run is None or self._state is None:
            return
        from dataclasses import replace

        self._run.write_state(replace(self._state, state=outcome, ended=time.time(),
                                      exit_code=runs.EXIT_CODES[outcome]))


def _of_node(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with all ranks of this machine, for whoever shows the run."""
    mine = plan["ranks"][0]
    first = mine["rank"] - mine["local_rank"]
    ranks = []
    for local in range(plan["local_world_size"]):
        devices = [d | {"label": d["label"].replace(str(mine["local_rank"]), str(local))}
                   for d in mine["devices"]] if local != mine["local_rank"] else mine["devices"]
        ranks.append(mine | {"rank": first + local, "local_rank": local, "devices": devices})
    return plan | {"ranks": ranks}


def read_spec(preset: str | None, sets: list[str]) -> RunSpec:
    """A preset by name or file (None: the defaults) with `key=value`s. Raises UserError."""
    data = presets.load(preset).data if preset else {}
    apply_sets(data, sets)
    return from_dict(data)


def devices_here(spec: RunSpec, who: Identity) -> list[dict[str, Any]]:
    """The devices of this process, as a plan holds them: what the launcher left visible.

    `devices.ids` is not looked at beyond CPU or GPU: CUDA_VISIBLE_DEVICES already chose.
    """
    wants_cpu = bool(spec.devices.ids) and all(i.startswith("cpu") for i in spec.devices.ids)
    if wants_cpu or not torch.cuda.is_available():
        return [{"id": f"cpu:{who.local_rank}", "label": f"CPU rank {who.local_rank}",
                 "uuid": None, "torch": "cpu", "cores": []}]
    count = torch.cuda.device_count()
    if spec.parallel.mode == "dp":
        chosen = list(range(count))
    elif spec.parallel.backend == "gloo":
        chosen = [who.local_rank % count]
    elif count == 1:
        chosen = [0]  # srun --gpus-per-task=1 shows each rank its own
    elif who.local_rank < count:
        chosen = [who.local_rank]
    else:
        raise UserError(f"local rank {who.local_rank} has no GPU of its own: {count} are visible")
    return [{"id": str(i), "label": f"GPU {i}", "uuid": None, "torch": f"cuda:{i}", "cores": []}
            for i in chosen]


def resolve(spec: RunSpec, who: Identity, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The plan of this rank, in plan.json's shape. Raises UserError for what does not fit."""
    mode = spec.parallel.mode
    if who.world_size > 1 and mode in ("single", "dp"):
        raise UserError(f"parallel.mode = \"{mode}\" is one process, but {who.source} started "
                        f"{who.world_size}; add --set parallel.mode=ddp")
    if spec.task.use is None:
        raise UserError("task.use: name a task; a command of your own needs no gpu_engine.worker")
    cpu = devices[0]["torch"] == "cpu"
    if mode == "dp" and cpu:
        raise UserError("parallel.mode = \"dp\": DataParallel needs GPUs; on the CPU take ddp")
    if cpu and spec.amp.dtype == "fp16":
        raise UserError("amp.dtype = \"fp16\": needs a GPU; on the CPU take bf16 or off")
    replicas = who.world_size if mode in ("ddp", "multinode") else len(devices)
    batch = batch_of(spec, replicas)
    if batch is None:
        near = nearest_batches(spec.batch.size, replicas * spec.batch.accumulate)
        raise UserError(f"batch.size = {spec.batch.size}: must divide by {replicas} replicas × "
                        f"{spec.batch.accumulate}; {near[0]} or {near[1]} would")
    backend = spec.parallel.backend if spec.parallel.backend != "auto" else (
        "gloo" if cpu else "nccl")
    from dataclasses import asdict

    local = max(who.local_world_size, 1)
    return {
        "version": 1, "name": spec.name, "mode": mode,
        "backend": backend if mode in ("ddp", "multinode") else "none",
        "device_type": "cpu" if cpu else "cuda", "world_size": who.world_size,
        "local_world_size": local, "nodes": -(-who.world_size // local),
        "node_rank": who.rank // local, "replicas": replicas,
        "master_addr": who.master_addr, "master_port": who.master_port,
        "unit": "slot" if cpu else "GPU", "batch": asdict(batch),
        "lr": asdict(learning_rate(spec, batch.global_size)),
        "ranks": [{"rank": who.rank, "local_rank": who.local_rank, "node": who.rank // local,
                   "devices": devices}],
        "processes": [], "lines": [shlex.join(sys.orig_argv)], "warnings": [],
        "spec": to_dict(spec)}
