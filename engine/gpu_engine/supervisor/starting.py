"""Starting the processes of an attempt."""

from __future__ import annotations

import logging
import os

from gpu_engine.common import procs
from gpu_engine.common.ports import address_of, free_port, interface_to
from gpu_engine.events.reader import Tail
from gpu_engine.plan.records import RUN_DIR, LaunchPlan
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.supervisor import logs
from gpu_engine.supervisor.attempt import Attempt
from gpu_engine.supervisor.children import spawn
from gpu_engine.supervisor.rank_state import RankState

_FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
            "GROUP_WORLD_SIZE", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID",
            "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID",
            "GPU_PANEL_RANK", "GPU_PANEL_DEVICES", "GPU_PANEL_DIRECT")
"""Variables that a launcher or a run above us may have left. A rank would take them for its own."""

log = logging.getLogger(__name__)


def start(run: Run, plan: LaunchPlan, attempt: Attempt, *, direct: bool, umask: int
          ) -> Cause | None:
    """Start all processes of the plan, with this umask. Returns a Cause if one could not be
    started. `direct`: the processes that are ranks are a person's own script."""
    port = str(free_port())
    cwd = plan.cwd or "/"
    for process in plan.processes:
        env = {k: v for k, v in os.environ.items() if k not in (*_FOREIGN, *process.unset)}
        env |= process.env
        if plan.nodes > 1 and plan.spec.task.command is not None:
            env = _interface(plan.master_addr) | env
        env |= {"GPU_PANEL_RUN": str(run.path), "PYTHONUNBUFFERED": "1",
                "GPU_PANEL_ATTEMPT": str(attempt.number),
                "GPU_PANEL_SUPERVISOR": f"{os.getpid()}:{procs.start_ticks(os.getpid())}"}
        if direct and process.role == "rank":
            env["GPU_PANEL_DIRECT"] = str(os.getpid())
        if env.get("MASTER_PORT") == "0":
            env["MASTER_PORT"] = port  # a new one each attempt: the last may still be in use
        argv = [a.replace(RUN_DIR, str(run.path)) for a in process.argv]
        path = run.path / (process.log or "ranks/00000.log")
        ranks = process.ranks
        seen = {r: RankState.from_now(r, Tail(run.events(r)), attempt.number) for r in ranks}
        try:
            if attempt.number > 1:
                logs.note(path, f"--- attempt {attempt.number} ---")
            child = spawn(argv, env=env, cwd=cwd, log=path, umask=umask, cores=process.cores,
                          ranks=ranks, role=process.role)
        except OSError as err:
            what = err.filename or argv[0]
            return Cause(f"can't start {argv[0]}: {err.strerror}: {what}", ranks[0],
                         type(err).__name__)
        log.info("attempt %d: rank %s is pid %d", attempt.number,
                 ",".join(map(str, ranks)), child.pid)
        attempt.children.append(child)
        attempt.events |= seen
    return None


def _interface(master: str) -> dict[str, str]:
    """The variables that have gloo and NCCL use the interface that leads to the other machines, as
    a task's ranks do (`worker/rank/group.py`): gloo would take the address of the host name,
    which on Debian is 127.0.1.1. Empty where `master` is a name of this machine itself."""
    address = address_of(master)
    name = interface_to(address) if address is not None else None
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name} if name else {}
