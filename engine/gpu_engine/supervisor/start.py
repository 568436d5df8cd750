"""Starting an attempt: its devices, which are leased as long as the run lives, are checked, and its
processes started.

The lease keeps our own runs apart, and those of all users if they share a folder. Only the driver
knows who else is on a GPU, and they may have come since the run was planned, so it is checked again
once the lease is held.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from gpu_engine.common import procs
from gpu_engine.common.paths import leases_folder
from gpu_engine.common.ports import address_of, free_port, interface_to
from gpu_engine.devices import availability, leases
from gpu_engine.devices.leases import why_not
from gpu_engine.devices.records import Device, Sample
from gpu_engine.events.reader import Tail
from gpu_engine.plan.records import MASTER_PORT, RUN_DIR, LaunchPlan
from gpu_engine.runs import job as slurm_job
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.spec.schema import RunSpec
from gpu_engine.supervisor.attempt import Attempt
from gpu_engine.supervisor.children import asked_to_end, spawn
from gpu_engine.supervisor.ranks import RankState

TIMEOUT = 30.0
"""Seconds that the driver has to answer: waking eight GPUs without persistence mode takes half of
that."""
PATIENCE = 2.0
"""Seconds to wait for devices that are not free, as a process on them may just be ending."""
PATIENCE_AGAIN = 10.0
"""The same after our own ranks have died there: the driver takes time to free their memory."""
_SAVING = 60.0
"""Seconds that a task's checkpoint may take beyond run.grace before others no longer count on its
end."""

_FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
            "GROUP_WORLD_SIZE", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID",
            "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID",
            "GPU_PANEL_RANK", "GPU_PANEL_DEVICES", "GPU_PANEL_DIRECT",
            "GPU_PANEL_NODE", slurm_job.OURS)
"""Variables that a launcher or a run above us may have left. A rank would take them for its own."""

log = logging.getLogger(__name__)


def devices_of(plan: LaunchPlan) -> list[Device]:
    """The devices of a plan, each once."""
    used = {d.id: d for r in plan.ranks for d in r.devices}
    return [Device(d.id, _kind(d.id, d.uuid), d.label, uuid=d.uuid, cores=d.cores,
                   index=int(number) if (number := d.id.rpartition(":")[2]).isdigit() else None)
            for d in used.values()]


def room_within(spec: RunSpec) -> float | None:
    """Seconds within which a run has made room for who waits for its devices, at most those that
    others believe; None: it makes none."""
    run = spec.run
    saving = run.grace_most if spec.task.command else _SAVING
    return min(run.give_way_after + run.grace + saving, leases.LONGEST_ROOM) \
        if run.give_way else None


def acquire(plan: LaunchPlan, run_id: str, waits: Callable[[str], bool]) -> leases.Leases:
    """Lease the devices for as long as this process lives. `waits`: as of `leases.acquire`. Raises
    UserError, which says who holds them."""
    why = why_not()
    if why is not None:
        log.warning("%s", why)
    share = plan.spec.devices.share or plan.device_type == "cpu"
    return leases.acquire(leases_folder(), devices_of(plan), run_id, share=share, waits=waits,
                          gives_way=room_within(plan.spec))


def blocked(plan: LaunchPlan, *, again_on_them: bool) -> str | None:
    """Why ranks can't start on the devices now; None if they can, or if a stop is asked for. A
    driver that does not answer is a reason, as ranks would hang in it, where no signal reaches
    them. Facts that it does not tell are logged. `again_on_them`: ranks of this run were on them
    before."""
    if plan.spec.devices.share or plan.device_type == "cpu":
        return None
    from gpu_engine.devices import discover  # late: on CPU slots there is nothing to ask

    devices, found = devices_of(plan), None
    end = time.monotonic() + (PATIENCE_AGAIN if again_on_them else PATIENCE)
    try:
        for samples in discover.readings(plan.source, devices, TIMEOUT, asked_to_end):
            found = _first(samples)
            if found is None:
                for sample in samples:
                    for doubt in availability.doubts(sample):
                        log.warning("%s: %s", sample.device.name, doubt)
                return None
            if time.monotonic() >= end:
                break
    except discover.NoAnswer as err:
        return (f"its GPUs can't be checked before the start: {err}. With devices.share = true "
                "they are not checked")
    return found


def _first(samples: tuple[Sample, ...]) -> str | None:
    for sample in samples:
        why = availability.in_the_way(sample)
        if sample.problem:
            return (f"{sample.device.name} can't be used: {why}. Take other devices, or search for "
                    "them again (in the panel: press c twice)")
        if why:
            return (f"{sample.device.name} is no longer free: {why}. Take other devices, wait, "
                    "or set devices.share = true")
    return None


def _kind(device_id: str, uuid: str | None) -> str:
    """The kind of a device: "cpu:0" is a CPU slot, and the id of a slice is its UUID."""
    if device_id.startswith("cpu:"):
        return "cpu"
    return "slice" if device_id == uuid else "gpu"


# --- its processes -------------------------------------------------------------------------------

def start(run: Run, plan: LaunchPlan, attempt: Attempt, *, direct: bool, umask: int
          ) -> Cause | None:
    """Start all processes of the plan, with this umask. Returns a Cause if one could not be
    started. `direct`: the processes that are ranks are a person's own script."""
    port = str(free_port())
    cwd = plan.runs_in
    for process in plan.processes:
        env = {k: v for k, v in os.environ.items() if k not in (*_FOREIGN, *process.unset)}
        env |= process.env
        if plan.nodes > 1 and plan.spec.task.command is not None:
            env = _interface(plan.master_addr) | env
        env |= {"GPU_PANEL_RUN": str(run.path), "PYTHONUNBUFFERED": "1",
                "GPU_PANEL_ATTEMPT": str(attempt.number),
                "GPU_PANEL_SUPERVISOR": f"{os.getpid()}:{procs.start_ticks(os.getpid())}"}
        if run.node:
            env["GPU_PANEL_NODE"] = str(run.node)
        if direct and process.role == "rank":
            env["GPU_PANEL_DIRECT"] = str(os.getpid())
        # A new one each attempt: the last may still be in use.
        if env.get("MASTER_PORT") == "0":
            env["MASTER_PORT"] = port
        elif plan.nodes > 1 and slurm_job.here() is not None:  # the same on all nodes
            env["MASTER_PORT"] = str(plan.master_port + (attempt.number - 1) % 100)
        argv = [a.replace(RUN_DIR, str(run.path)).replace(MASTER_PORT, port) for a in process.argv]
        path = run.path / (process.log or "ranks/00000.log")
        ranks = process.ranks
        seen = {r: RankState.from_now(r, Tail(run.events(r)), attempt.number) for r in ranks}
        try:
            child = spawn(argv, env=env, cwd=cwd, log=path, umask=umask, cores=process.cores,
                          ranks=ranks, role=process.role, session=plan.spec.task.use is not None)
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
