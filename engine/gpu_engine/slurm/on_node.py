"""`python -m gpu_engine.slurm.on_node RUN PER_NODE [--set KEY=VALUE …]`: the one line of the batch
script of a run on one node. It plans the run with the devices that Slurm has given to the job, and
is its supervisor, in the foreground: a run on Slurm is like one that was started there by hand.

The job is the run's: where Slurm warns of the time limit or takes the node, the ranks save and
stop, and the job goes back to the queue, from where the same line goes on with the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import json_inside
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.interpreters import choose
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import pick, planned
from gpu_engine.plan.check import check
from gpu_engine.runs import attempts
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import create_run, reopen_run
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.slurm import commands
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.slurm.script import OF_THE_JOB, on_cpu
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.write import to_toml
from gpu_engine.supervisor.__main__ import in_foreground

_OF_THE_STEP = re.compile(
    r"SLURM_(?:NTASKS|NPROCS|PROCID|LOCALID|NODEID|GTIDS|TASK_PID|STEP|TASKS_PER_NODE|CPU_BIND"
    r"|LAUNCH_NODE|SRUN_|DISTRIBUTION|PRIO_PROCESS|UMASK|PTY|TRES_PER_TASK)|SRUN_")
"""What srun tells its one task. A rank, Lightning or an srun in a person's own command would take
it for the number and the place of the ranks."""


def main(name: str, per_node: int, sets: Sequence[str]) -> int:
    """The exit status for Slurm: 0 for completed, 75 for stopped, 1 for failed. Raises UserError
    before it begins.

    name: the path of the run folder, or `script.OF_THE_JOB`: the script was submitted by hand, and
    its first start makes the folder, from the `sets` (`key=value`)."""
    job = jobs.here()
    if job is None:
        raise UserError("this is the line of a batch script: gpu-engine slurm writes one")
    own = name == OF_THE_JOB
    folder = paths.runs_folder() / f"slurm-{job.id}" if own else Path(name)
    run, there = Run(folder), os.path.lexists(folder / "plan.json")
    if own and there and not job.restarts:
        raise UserError(f"{folder} is the run of an earlier job with this number; rename it")
    if not own and not there:
        raise UserError(f"the run folder {folder} is missing on {socket.gethostname()}")
    if jobs.asked_to_stop(folder):
        sys.stdout.write("the run was stopped: not started again\n")
        return 0
    lock = _open(run, job, None if there else sets, per_node)
    if jobs.read(folder) is None:
        with telling(f"{folder}: can't be written"):
            jobs.write(folder, job)
    for name in list(os.environ):
        if _OF_THE_STEP.match(name):
            del os.environ[name]
    # Where Slurm follows processes by their parents, its warning reaches a person's script as well,
    # which it would end; we hand it on as run.stop_signal. One that asks for it still gets it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.stdout.flush()
    in_foreground(folder, lock)
    state = State.from_dict(json_inside(folder, "state.json"))
    ended = state.state if state is not None else "failed"
    if ended == "stopped" and not jobs.asked_to_stop(folder) and _runs(job.id):
        sys.stdout.write(f"stopped and saved: job {job.id} goes back to the queue\n")
        sys.stdout.flush()
        # The last that this process does: Slurm ends what is left of the job.
        commands.call(["scontrol", "requeue", str(job.id)])
        return 0
    # 75: not finished (sysexits.h), so that no job that waits for the end of this one takes it so.
    return {"completed": 0, "stopped": os.EX_TEMPFAIL}.get(ended, 1)


def _open(run: Run, job: jobs.Job, sets: Sequence[str] | None, per_node: int) -> int:
    """Put the plan of this attempt into the run's folder; `sets`: make that. Returns the descriptor
    that holds its lock. Raises UserError."""
    if sets is None:
        spec, before = from_dict(attempts.read_spec(run)), run.require_plan()
    else:
        data: dict[str, object] = {}
        apply_sets(data, sets)
        spec, before = from_dict(data), None
    inventory = cpu_slots() if on_cpu(spec) else discover()
    # Slurm has chosen the devices. Its jobs may share one; who else is on it is Slurm's to judge.
    devices = replace(spec.devices, hosts=None, share=True, free_gib=None, ids=None, pick=per_node)
    if on_cpu(spec):
        devices = replace(devices, ids=[f"cpu:{i}" for i in range(per_node)], pick=None)
    mine = pick(replace(spec, devices=devices), inventory)
    plan = planned(check(mine, inventory), choose.of_spec(mine))
    if before is not None:
        plan = replace(plan, origin=before.origin, part_of=before.part_of, lines=before.lines)
        return reopen_run(run, to_toml(spec), plan, job.id)
    _, lock = create_run(spec.name, to_toml(spec), plan, path=run.path)
    environment.note(run, plan, inventory)
    return lock


def _runs(job: int) -> bool:
    """Whether the job is neither cancelled nor ended by Slurm already, which also sends signals
    first."""
    with contextlib.suppress(SlurmError):
        return commands.call(["squeue", "-h", "-j", str(job), "-o", "%T"]).strip() == "RUNNING"
    return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[4::2]))
    except (UserError, SlurmError) as err:
        sys.exit(str(err))
