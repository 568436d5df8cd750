"""A rank without a supervisor: started by torchrun or srun, or by hand with
`--init-method tcp://host:port --rank R --world-size W`.

    torchrun --nproc-per-node 2 -m gpu_engine.worker ddp --set batch.size=64

The launcher decides how many ranks there are and where each one runs; the preset decides
everything else. The rank makes the same plan and run folder as a launch from the panel, so the
panel can follow the run. When torchrun starts the ranks once more, they go on in their old run
folder, whose path the agent's store keeps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import MutableMapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from gpu_engine import notify
from gpu_engine.common import paths, procs
from gpu_engine.common.clean import clean, shown_words
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import expanded, write_json_inside
from gpu_engine.common.records import read_record
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.events import schema
from gpu_engine.events.reader import backwards
from gpu_engine.plan import build, without_effect
from gpu_engine.plan.batch import Layout
from gpu_engine.plan.records import RankPlan
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs import leftovers
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.spec import modes, presets
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml
from gpu_engine.supervisor.cause import Failure, of_events
from gpu_engine.worker.rank.group import Group, join
from gpu_engine.worker.rank.job import Identity, Job, from_plan, identify

_OF_AGENT = "gpu-panel/run"
"""The key for the path of the run folder in the store of torchrun's agent."""


_LOCK = 30.0
"""Seconds to wait for the processes of the previous attempt to end."""


class RankWithoutSupervisor:
    """A rank that joins the others by itself; rank 0 also keeps the run folder."""

    def __init__(self, args: argparse.Namespace, env: MutableMapping[str, str]) -> None:
        """Join the other ranks and agree with them on a run folder: a new one, or their old one
        if this is a restart. Raises UserError."""
        data = presets.load(args.preset).data if args.preset else {}
        apply_sets(data, args.sets)
        spec = from_dict(data)
        env.update(spec.run.env)
        who = identify(env, init_method=args.init_method, rank=args.rank,
                       world_size=args.world_size)
        self._batch = slurm_job.here(env)
        warnings = _without_effect(spec, who) if self._batch is None else ()
        # What the launcher has decided: this rank's place among the others, and where they meet.
        layout = Layout(first_rank=who.rank, first_local_rank=who.local_rank, ranks=1,
                        world_size=who.world_size, local_world_size=max(who.local_world_size, 1),
                        node=who.node, nodes=who.nodes,
                        master_addr=who.master_addr or "127.0.0.1",
                        master_port=who.master_port or 0, launched_by=who.source)
        plan = build.plan(spec, devices_here(spec, who), python=sys.executable, layout=layout)
        plan = replace(plan, lines=(shlex.join(shown_words(sys.orig_argv)),), warnings=warnings)
        who = replace(who, master_addr=plan.master_addr, master_port=plan.master_port)
        first = torch.device(plan.ranks[0].devices[0].torch)
        if first.type == "cuda":
            torch.cuda.set_device(first)
        self._state: runs.State | None = None
        self._run: runs.Run | None = None
        self._who, self._plan, self._spec = who, plan, spec
        self._named = named(args.folder) if args.folder else None
        self.group: Group = join(who, plan.backend, spec.parallel.timeout, nodes=plan.nodes,
                                 device=first)
        path, attempt = self._folder()
        env["GPU_PANEL_ATTEMPT"] = str(attempt)
        self.job: Job = from_plan(plan, path, who, attempt)

    def _folder(self) -> tuple[Path, int]:
        """(run folder, number of this attempt), agreed on by all ranks. A machine that does not
        share rank 0's disk has a folder of the same name."""
        pid = os.getpid()
        found = [json.loads(f) for f in self.group.gather(json.dumps(
            [asdict(self._plan.ranks[0]), pid, procs.start_ticks(pid), socket.gethostname()]
        ).encode()) or ()]
        answer: dict[str, Any] = {}
        if self._who.rank == 0:
            try:
                answer = self._open([plan | {"host": None if plan["node"] == self._who.node else
                                             clean(name, 64)} for plan, _, _, name in found])
            except UserError as err:
                answer = {"problem": str(err)}
        answer = json.loads(self.group.broadcast(json.dumps(answer)))
        if "problem" in answer:
            self.group.close()  # rank 0 holds what the others still read
            raise UserError(answer["problem"])
        self._beside = {plan["rank"]: (pid, ticks) for plan, pid, ticks, _ in found
                        if plan["node"] == self._who.node}
        path = Path(answer["run"])
        if not (path / "plan.json").exists():  # a machine that does not share rank 0's disk
            path = self._named or runs.require_folder(paths.runs_folder()) / path.name
            paths.private_folder(path / "ranks")
            write_json_inside(path, "plan.json", self._plan.to_dict())
        return path, answer["attempt"]

    def _open(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """On rank 0, make the run folder or open the old one; the answer for all ranks. `found`:
        each rank's part of the plan, with the name of a machine that is not this one. Raises
        UserError."""
        path, store, batch = self._named, self.group.of_agent, self._batch
        if store is not None and store.check([_OF_AGENT]):
            path = Path(store.get(_OF_AGENT).decode())
        plan = replace(self._plan, ranks=tuple(read_record(RankPlan, f) for f in found))
        # The lock is held as long as this process lives.
        if path is None or not (path / "plan.json").exists():
            run, self._lock = create_run(self._spec.name, to_toml(self._spec), plan, path=path)
        else:
            run, end = runs.Run(path), time.monotonic() + _LOCK
            while run.supervised() and time.monotonic() < end:
                time.sleep(0.2)  # a killed rank takes a moment to release the lock
            self._lock = reopen_run(run, to_toml(self._spec), plan, batch and batch.id)
        if batch is not None and slurm_job.read(run.path) is None:
            with telling(f"{run.path}: can't be written"):
                slurm_job.write(run.path, batch)
        if store is not None:
            store.set(_OF_AGENT, str(run.path))
        now, opened = time.time(), run.state()
        self._run, number = run, opened.attempt
        why = f"started by {self._who.source}, not by gpu-panel" if batch is None else None
        self._state = runs.State(
            "running", run.id, self._spec.name, opened.created, started=now,
            pid=os.getpid(), ticks=procs.start_ticks(os.getpid()), boot=procs.boot_id(),
            reason=why, attempt=number, attempts=(*opened.attempts, runs.AttemptRecord(
                number, now, changed=opened.changed,
                requeued=batch.restarts if batch is not None else None)))
        run.write_state(self._state)
        if number > 1:
            newest = leftovers.last_checkpoint(run.path)
            sys.stdout.write(f"run {run.id} goes on as attempt {number}, "
                             + (f"from {newest}\n" if newest else "without a checkpoint\n"))
        return {"run": str(run.path), "attempt": number}

    def record_end(self, outcome: str, trained: bool) -> None:
        """Record the outcome of the attempt: on rank 0, as a supervisor would. If the ranks have
        `trained`, the others wait until that is done, as many launchers end all ranks when the
        first one exits."""
        if self._run is not None and self._state is not None:
            now = time.time()
            *before, last = self._state.attempts
            cause = of_events(self._run, self._killed(self._run, last)) \
                if outcome == "failed" else None
            reason = self._state.reason if cause is None else cause.line
            last = replace(last, ended=now, outcome=outcome, reason=cause and cause.line)
            state = replace(self._state, state=cast(runs.StateName, outcome), ended=now,
                            exit_code=runs.EXIT_CODES[outcome], attempts=(*before, last),
                            reason=reason, cause=cause)
            self._run.write_state(state)
        if trained and outcome != "failed":
            with contextlib.suppress(UserError):  # it is gone
                self.group.broadcast("")


    def _killed(self, run: runs.Run, attempt: runs.AttemptRecord) -> list[Failure]:
        """The ranks of this machine that are gone, and have recorded no end. What connections tell
        of them is no cause."""
        return [Failure(rank, None, time.time()) for rank, process in self._beside.items()
                if not procs.alive(*process) and getattr(next(
                    backwards(run.events(rank), schema.End, within=1 << 12), None), "t", 0.0)
                < attempt.started]


# --- its run folder: a new one, or the old one when the ranks are started once more ---------------

def named(folder: str) -> Path:
    """The run folder that `--folder` means: a path, or the name of a run. Raises UserError."""
    if "/" in folder:
        return expanded(folder).absolute()
    if not re.fullmatch(r"[\w-][\w.-]{0,127}", folder):
        raise UserError(f"--folder {folder!r}: expected a name of letters, digits, - _ and ., or a "
                        "path with /")
    return paths.runs_folder() / folder


# --- its spec, devices and place -----------------------------------------------------------------

def _without_effect(spec: RunSpec, who: Identity) -> tuple[str, ...]:
    """The keys that have no effect without a supervisor, in warnings, which rank 0 prints. Raises
    SpecError for those without which it would be another run. A job of Slurm that we have submitted
    was told before."""
    by = who.source if who.source in ("torchrun", "srun") else "python -m gpu_engine.worker"
    if problems := without_effect.refused(spec, without_effect.BY_HAND, by=by):
        raise SpecError(problems)
    warnings = without_effect.told(spec, without_effect.BY_HAND, by=by)
    if notify.exists():
        warnings += ("notify.toml tells nobody of it, as nothing of ours is beside the ranks: "
                     "start it by gpu-engine run",)
    for warning in warnings if who.rank == 0 else ():
        sys.stderr.write(f"warning: {warning}\n")
    return warnings


def devices_here(spec: RunSpec, who: Identity) -> Inventory:
    """The devices of this process, among those that the launcher made visible to it.

    `devices.ids` only decides between CPU and GPU here, as CUDA_VISIBLE_DEVICES has already chosen
    the GPUs. Raises UserError if there is no GPU for this local rank.
    """
    wants_cpu = bool(spec.devices.ids) and all(i.startswith("cpu") for i in spec.devices.ids)
    if wants_cpu or not torch.cuda.is_available():
        here = who.local_rank
        return Inventory((Device(f"cpu:{here}", "cpu", "CPU", index=here),), "cpu")
    count = torch.cuda.device_count()
    mode = modes.get(spec.parallel.mode)
    if not mode.process_a_device:
        chosen = list(range(count))[:mode.most_devices]
    elif spec.parallel.backend == "gloo":
        chosen = [who.local_rank % count]
    elif count == 1:
        chosen = [0]  # under srun --gpus-per-task=1 each rank sees one GPU
    elif who.local_rank < count:
        chosen = [who.local_rank]
    else:
        raise UserError(f"local rank {who.local_rank} has no GPU of its own: {count} are visible")
    return Inventory(tuple(
        Device(str(i), "gpu", torch.cuda.get_device_name(i), index=i, visible_index=i)
        for i in chosen), "nvml")
