"""`python -m gpu_engine.on_node RUN [--set KEY=VALUE …]`: the one line of the batch script, which
srun starts on each node. It plans the run with the devices that Slurm has given to the job there,
and is its supervisor, in the foreground: a run on Slurm is like one that was started there by hand.

The job is the run's: where Slurm warns of the time limit or takes the node, the ranks save and
stop, and the job goes back to the queue, from where the same line goes on with the run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.interpreters import choose
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import pick, planned
from gpu_engine.on_node.nodes import (
    Beside,
    Here,
    await_call,
    await_ends,
    call,
    gather,
    join,
    spec_of,
)
from gpu_engine.plan.check import check
from gpu_engine.runs import attempts
from gpu_engine.runs import environment as environment_of
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import create_run, reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import FINAL, AttemptRecord, Cause, State
from gpu_engine.slurm import commands
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.slurm.script import OF_THE_JOB, asked_of, on_cpu, placed
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml
from gpu_engine.supervisor.__main__ import in_foreground

_NOTICED = 600.0
"""Seconds within which Slurm notices that a node is gone; SlurmdTimeout is 300 s unless the cluster
says otherwise."""
_AWAY = 600.0
"""Seconds for which a controller that is away is waited for, once the ranks have saved."""
_ASK_AGAIN = 2.0
_OF_THE_STEP = re.compile(
    r"SLURM_(?:NTASKS|NPROCS|PROCID|LOCALID|NODEID|GTIDS|TASK_PID|STEP|TASKS_PER_NODE|CPU_BIND"
    r"|LAUNCH_NODE|SRUN_|TIME_FORMAT|DISTRIBUTION|PRIO_PROCESS|UMASK|PTY|TRES_PER_TASK)|SRUN_")
"""What srun tells its one task. A rank, Lightning or an srun in a person's own command would take
it for the number and the place of the ranks."""


def main(name: str, sets: Sequence[str]) -> int:
    """The exit status for Slurm: 0 for completed, 75 for stopped, 1 for failed; of another node
    than the first one 0 as well where it was stopped, as srun would end the others at once. Raises
    UserError before it begins.

    name: the path of the run folder, or `script.OF_THE_JOB`: the script was submitted by hand, and
    its first start makes the folder, from the `sets` (`key=value`)."""
    job, here = jobs.here(), Here.of()
    if job is None:
        raise UserError("this is the line of a batch script: gpu-engine slurm writes one")
    own = name == OF_THE_JOB
    folder = paths.runs_folder() / f"slurm-{job.id}" if own else Path(name)
    run, there = Run(folder, here.node), os.path.lexists(folder / "plan.json")
    if own and there and not job.restarts and here.node == 0:
        raise UserError(f"{folder} is the run of an earlier job with this number; rename it")
    if not own and not there:
        raise UserError(f"the run folder {folder} is missing on {socket.gethostname()}")
    if jobs.asked_to_stop(folder):
        sys.stdout.write("the run was stopped: not started again\n")
        return 0
    with telling(f"{folder}: can't be written"):
        lock = _open(run, job, here, sets if own else None)
    for variable in list(os.environ):
        if _OF_THE_STEP.match(variable):
            del os.environ[variable]
    # Where Slurm follows processes by their parents, its warning reaches a person's script as well,
    # which it would end; we hand it on as run.stop_signal. One that asks for it still gets it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.stdout.flush()
    asked = in_foreground(run, lock, Beside(run, here) if here.nodes > 1 else None)
    return _end(run, job, here, asked)


def _end(run: Run, job: jobs.Job, here: Here, asked: bool) -> int:
    """What is done once this node's supervisor has ended. `asked`: by a signal of Slurm, and not
    as its time was up or another run was better. Returns the exit status."""
    state = run.recorded()
    if state is None:
        return 1
    if state.state not in FINAL:  # it was killed, and its guard is this process
        state = _failed(run, state, f"the supervisor on {here.name} was killed")
    grace = 2 * run.require_plan().spec.run.grace + 60
    if here.node:
        # The exit status of a failure has srun end the other nodes: not before they know of it.
        if state.state == "failed":
            await_ends([Run(run.path)], grace)
        return int(state.state == "failed")
    others = [Run(run.path, node) for node in range(1, here.nodes)]
    ended = await_ends(others, grace)
    failed = next((s for s in ended if s.state == "failed"), None)
    lost = failed is None and len(ended) < len(others)
    if state.state != "failed" and (failed is not None or lost):
        state = _failed(run, state, (failed and failed.reason) or "a node of the job was lost")
    if lost and not jobs.asked_to_stop(run.path):
        # If the node is gone, Slurm notices that (SlurmdTimeout) and puts the job back, but not one
        # that has ended by then. If only our processes there are, srun ends this one as well.
        sys.stdout.write("a node of the job was lost: waiting for what Slurm makes of it\n")
        sys.stdout.flush()
        time.sleep(_NOTICED)
    if state.state == "stopped" and asked and not jobs.asked_to_stop(run.path) \
            and _put_back(job.id):
        return 0
    # 75: not finished (sysexits.h), so that no job that waits for the end of this one takes it so.
    return {"completed": 0, "stopped": os.EX_TEMPFAIL}.get(state.state, 1)


def _failed(run: Run, state: State, why: str) -> State:
    """Note that the run has failed, though its supervisor has not said so."""
    *before, last = state.attempts or (AttemptRecord(state.attempt, time.time()),)
    last = replace(last, ended=last.ended or time.time(), outcome="failed", reason=why)
    state = replace(state, state="failed", ended=state.ended or time.time(), exit_code=1,
                    reason=why, cause=Cause(why), attempts=(*before, last))
    run.write_state(state)
    return state


def _open(run: Run, job: jobs.Job, here: Here, sets: Sequence[str] | None) -> int:
    """Put the plan of this attempt into the run's folder; `sets`: make that, on the job's first
    start. Returns the descriptor that holds this node's lock. Raises UserError, OSError."""
    first, near = Run(run.path), Path(working_folder())
    if here.node:
        await_call(run, job)  # by then the spec and the folder are those of this attempt
    if sets is None or here.node:
        spec, before = from_dict(attempts.read_spec(first)), first.require_plan()
        asked, folder = spec, Path(before.runs_in)
        if here.node:
            spec = replace(spec, task=before.spec.task)  # it may name files of the copy
        else:
            spec, folder = _in_its_code(run, spec)
        with telling(f"{folder}: can't be entered"):
            os.chdir(folder)
    else:
        data: dict[str, object] = {}
        apply_sets(data, sets)
        spec, before = from_dict(data), first.plan() if job.restarts else None
        asked, folder = spec, near
    inventory = cpu_slots() if on_cpu(spec) else discover()
    count = asked_of(spec).per_node
    # Slurm has chosen the devices. Its jobs may share one; who else is on it is Slurm's to judge.
    mine = spec_of(placed(spec).spec, here, job, count)
    devices = replace(mine.devices, share=True, free_gib=None)
    if not on_cpu(spec):
        devices = replace(devices, ids=None, pick=count)
    mine = pick(replace(mine, devices=devices), inventory)
    plan = planned(check(mine, inventory), choose.of_spec(mine, near))
    if here.node:
        return join(run, job, here, plan)
    if before is None:
        _, lock = create_run(spec.name, to_toml(spec), plan, path=run.path)
        environment.note(run, plan, inventory)
    else:
        plan = replace(plan, origin=before.origin, part_of=before.part_of, lines=before.lines,
                       resume_from=before.resume_from, cwd=first.cwd(),
                       copy=str(folder) if folder != Path(first.cwd()) else None)
        lock = reopen_run(run, to_toml(asked), plan, job.id)
    if jobs.read(run.path) is None:
        jobs.write(run.path, job)
    if here.nodes > 1:
        call(run, job, here)
        gather(run, job, here)
    return lock


def _in_its_code(run: Run, spec: RunSpec) -> tuple[RunSpec, Path]:
    """The spec and the folder to run in, with the code as it was at the submission. Raises
    UserError."""
    if shutil.which("git") is None:
        # Whether it has changed is not known, and without git nothing would be linked to the data.
        sys.stdout.write("the code is taken as it is: git is not installed on this node\n")
        return spec, Path(run.cwd())
    folder, spec = submitted.place_of(run, spec, environment_of.read(run.path))
    return spec, folder


def _put_back(job: int) -> bool:
    """Have Slurm put the job back into the queue, unless it is cancelled or ended already, where
    Slurm also sends signals first. Its controller may be away for a while, in which no time limit
    ends the job. Returns whether it goes back."""
    end = time.monotonic() + _AWAY
    while True:
        try:
            if commands.call(["squeue", "-h", "-j", str(job), "-o", "%T"]).strip() != "RUNNING":
                return False
            sys.stdout.write(f"stopped and saved: job {job} goes back to the queue\n")
            sys.stdout.flush()
            # The last that this process does: Slurm ends what is left of the job.
            commands.call(["scontrol", "requeue", str(job)])
            return True
        except SlurmError:
            if time.monotonic() > end:
                raise
            time.sleep(_ASK_AGAIN)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[3::2]))
    except (UserError, SlurmError) as err:
        sys.exit(str(err))
