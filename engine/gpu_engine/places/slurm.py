"""Slurm as a place. Its line is its own, so that a run is submitted when it is started, and its
nodes have the files that this machine has. Its run folder stands in the list from that moment on.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import write_inside
from gpu_engine.devices.records import Inventory
from gpu_engine.interpreters import choose
from gpu_engine.launching import environment as noting
from gpu_engine.launching import launcher, notifier, preflight
from gpu_engine.launching.launcher import Prepared
from gpu_engine.plan.records import ResumeFrom
from gpu_engine.runs import environment, job
from gpu_engine.runs.create import reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.slurm import commands, script, submit
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

_ITS_OWN = Inventory((), "nvml")
_INHERITED = ("requeue", "no-requeue", "open-mode", "signal", "array-inx", "export", "wait",
              "output", "error")
"""Settings of the environment that would change what the script depends on."""


def devices(spec: RunSpec) -> Inventory:
    """It chooses them."""
    return _ITS_OWN


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            in_sweep: bool = False, **_: object) -> Prepared:
    """`verbs.prepare`."""
    plan = submit.plan_of(spec, base, in_sweep=in_sweep)
    if problems := preflight.lasting(script.placed(spec).spec, Inventory((), plan.source), cwd,
                                     choose.of_spec(spec, cwd)):
        raise SpecError(problems)
    return Prepared(spec, _ITS_OWN, launcher.warned(plan, notifier.doubt()))


def start(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = (),
          member: Member | None = None, options: Sequence[str] = (), kept: Kept | None = None
          ) -> Run:
    """`verbs.start`. The script's own output goes to the run's supervisor.log, each rank's to
    `ranks/`. `member`: its place in a sweep. `options`: further ones of sbatch, for this submission
    alone. `kept`: its code, if that is kept already."""
    folder = working_folder()
    code = kept or keep(prepared.spec, Path(folder))
    if shutil.which("sbatch") is None:
        raise UserError("sbatch is not installed on this machine: submit from a machine of the "
                        "cluster, or write the script (gpu-engine slurm … --output) and take it "
                        "there")
    # Who is ended while sbatch is waited for leaves no folder of a run that never was.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with launcher.new_folder(prepared, tags=tags, member=member) as (run, lock):
            noting.note(run, prepared.plan, prepared.inventory, code)
            _submit(run, prepared.spec, folder, options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(lock)
    if tell:
        notifier.start(run)
    return run


def again(run: Run, spec: RunSpec, start: str = "newest") -> Prepared:
    """`launcher.again`, with the code as it is now. Where it is refused the run is as it was."""
    chosen = launcher.checkpoint_of(run, spec, start)
    known = job.read(run.path)
    if known is None or known.request is None:  # of a script that a person has submitted
        return launcher.start_again(run, spec, chosen)
    before, stopped, locks = environment.read(run.path), job.asked_to_stop(run.path), list[int]()
    # Before the submission: the job may begin at once, and looks for its code.
    noting.note(run, run.require_plan(), _ITS_OWN, keep(spec, Path(run.cwd())))
    try:
        plan = submit.plan_of(spec)
        if chosen is not None:
            plan = replace(plan, resume_from=ResumeFrom(chosen, run.state().attempt + 1))
        (run.path / job.STOP).unlink(missing_ok=True)
        # Its ranks are seconds away: the interpreter has to start, and torch to be imported.
        _submit(run, spec, run.cwd(), then=lambda: locks.append(
            reopen_run(run, to_toml(spec), plan)))
    except BaseException:
        with suppress(OSError):
            if stopped:
                job.ask_to_stop(run.path)
            environment.write(run.path, before)
        raise
    finally:
        for lock in locks:
            os.close(lock)
    notifier.start(run)
    return Prepared(spec, _ITS_OWN, plan)


def _submit(run: Run, spec: RunSpec, folder: str, options: Sequence[str] = (),
            then: Callable[[], object] = bool) -> None:
    """Submit the run's job and do `then`, before the job is noted in the run's folder. Where that
    can't be done, the job is cancelled. Raises SpecError and UserError as `script.batch_script`,
    and UserError with sbatch's words if it is refused."""
    request = script.asked_of(spec)
    keys = [option.partition("=")[0] for option in (*request.options, *options)]
    if given := {"output", "error"} & {*keys}:
        raise UserError(f"-o {min(given)}: the output of a submitted run goes into its run folder; "
                        "gpu-engine logs prints it")
    text = script.batch_script(spec, folder, str(paths.home()), str(run.path))
    with telling(f"{run.path / job.SCRIPT}: can't be written"):
        write_inside(run.path, job.SCRIPT, text)
    try:
        number = commands.submit(
            run.path / job.SCRIPT, folder, script.pattern(str(run.path), job.OUTPUT),
            options=options, without=(*_INHERITED, *keys))
    except SlurmError as err:
        raise UserError(f"the job was not submitted: {err}") from None
    try:
        with telling(f"{run.path} can't be written"):
            then()
            job.write(run.path, job.Job(number, request=request))
    except BaseException as err:
        told = "it was cancelled"
        try:
            commands.cancel(number)
        except SlurmError as refused:
            told = f"cancel it with scancel {number} ({refused})"
        if isinstance(err, UserError):
            raise UserError(f"job {number} is submitted, but {err}; {told}") from None
        raise
