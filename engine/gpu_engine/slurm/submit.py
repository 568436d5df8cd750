"""Submitting a run as a job of Slurm. Its run folder stands in the list from that moment on."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import write_inside
from gpu_engine.interpreters import choose
from gpu_engine.plan.build import resolve
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import create_run, discard, reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.slurm import commands
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.slurm.script import Place, batch_script, job_of, kept, pattern, placed
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

_INHERITED = ("requeue", "no-requeue", "open-mode", "signal", "array-inx", "export", "wait",
              "output", "error")
"""Settings of the environment that would change what the script depends on."""


def submit(spec: RunSpec, job: jobs.Request) -> tuple[Run, jobs.Job]:
    """Make a run folder with the batch script in it and submit that. The script's own output goes
    to its supervisor.log, each rank's to `ranks/`.

    Raises SpecError and UserError as `batch_script`, and UserError with sbatch's words if the job
    is refused; the run folder is then removed.
    """
    if shutil.which("sbatch") is None:
        raise UserError("sbatch is not installed on this machine: submit from a machine of the "
                        "cluster, or write the script with --output and take it there")
    place = Place(choose.for_nodes(spec.run.python), working_folder(), str(paths.home()))
    for key in _keys(job):
        if key in ("output", "error"):
            raise UserError(f"-o {key}: the output of a submitted run goes into its run folder; "
                            "gpu-engine logs prints it")
    checked = placed(spec, job)
    plan = resolve(checked, python=place.python)
    disk_room.require(paths.runs_folder())
    run, lock = create_run(spec.name, to_toml(kept(checked.spec, job)), _without_ranks(plan))
    try:
        there = _submitted(run, batch_script(spec, job, place, str(run.path)), job, place)
        _record(run, there)
    except BaseException:
        discard(run)
        raise
    finally:
        os.close(lock)
    return run, there


def again(run: Run, spec: RunSpec) -> LaunchPlan:
    """Submit another attempt of an ended run, which was submitted before, with `spec`. It goes on
    from the newest checkpoint. Raises as `submit`; the run is then as it was."""
    known = jobs.read(run.path)
    if known is None or known.request is None:
        raise UserError(f"run {run.id} was not submitted by gpu-panel")
    asked = known.request
    job = job_of(spec, asked.nodes, asked.per_node, asked.options)
    place = Place(choose.for_nodes(spec.run.python, Path(run.cwd())), run.cwd(), str(paths.home()))
    checked = placed(spec, job)
    plan = _without_ranks(resolve(checked, python=place.python))
    stopped = jobs.asked_to_stop(run.path)
    there = None
    try:
        (run.path / jobs.STOP).unlink(missing_ok=True)
        there = _submitted(run, batch_script(spec, job, place, str(run.path)), job, place)
        # Its ranks are seconds away: the interpreter has to start, and torch to be imported.
        lock = reopen_run(run, to_toml(kept(checked.spec, job)), plan)
    except BaseException:
        if there is not None:
            with contextlib.suppress(SlurmError):
                commands.cancel(there.id)
        with contextlib.suppress(OSError):
            if stopped:
                jobs.ask_to_stop(run.path)
        raise
    try:
        _record(run, there)
    finally:
        os.close(lock)
    return plan


def _keys(job: jobs.Request) -> list[str]:
    return [option.partition("=")[0] for option in job.options]


def _submitted(run: Run, script: str, job: jobs.Request, place: Place) -> jobs.Job:
    path = run.path / jobs.SCRIPT
    try:
        write_inside(run.path, jobs.SCRIPT, script)
        number = commands.submit(
            path, place.folder, pattern(str(run.path), jobs.OUTPUT),
            without=(*_INHERITED, *_keys(job)))
    except SlurmError as err:
        raise UserError(f"the job was not submitted: {err}") from None
    except OSError as err:
        raise UserError(f"{path}: can't be written: {err.strerror}") from None
    return jobs.Job(number, request=job)


def _record(run: Run, there: jobs.Job) -> None:
    """Note the job in the run's folder. If that can't be done, it is cancelled, and UserError
    raised."""
    try:
        jobs.write(run.path, there)
    except OSError as err:
        what = f"job {there.id} is submitted, but {run.path} can't be written: {err.strerror}"
        try:
            commands.cancel(there.id)
        except SlurmError as refused:
            raise UserError(f"{what}; cancel it with scancel {there.id} ({refused})") from None
        raise UserError(f"{what}; it was cancelled") from None


def _without_ranks(plan: LaunchPlan) -> LaunchPlan:
    """Which devices the ranks have is known when they start."""
    return replace(plan, ranks=(), processes=(), lines=(shlex.join(["sbatch", jobs.SCRIPT]),))
