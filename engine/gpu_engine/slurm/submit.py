"""Submitting a run as a job of Slurm. Its run folder stands in the list from that moment on."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import paths, units
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import write_inside
from gpu_engine.launching.launcher import Prepared, new_folder
from gpu_engine.plan import without_effect
from gpu_engine.plan.build import engine_line, resolve
from gpu_engine.plan.records import LaunchPlan, ResumeFrom
from gpu_engine.remote.reach import hosts
from gpu_engine.runs import job as jobs
from gpu_engine.runs.create import reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.slurm import commands, script
from gpu_engine.slurm.commands import SlurmError
from gpu_engine.slurm.script import Place
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import SLURM, parse_all
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

_INHERITED = ("requeue", "no-requeue", "open-mode", "signal", "array-inx", "export", "wait",
              "output", "error")
"""Settings of the environment that would change what the script depends on."""


def is_meant(spec: RunSpec) -> bool:
    """Whether the run is for Slurm: its devices.hosts name it, and no host of this person is called
    so; then only a partition can mean it. Raises UserError."""
    entries = parse_all(spec.devices.hosts or ())
    if all(entry.host != SLURM for entry in entries):
        return False
    return entries[0].partition is not None or not _a_host()


def _a_host() -> bool:
    """Whether a person has a host that is called slurm."""
    config = Path.home() / ".ssh" / "config"
    lines = config.read_text(errors="replace").splitlines() if config.is_file() else []
    return SLURM in hosts.read() or any(
        SLURM in words[1:] for words in map(str.split, lines) if words[:1] in (["Host"], ["host"]))


def plan_of(spec: RunSpec, base: tuple[str, RunSpec] | None = None, *, in_sweep: bool = False
            ) -> LaunchPlan:
    """The plan of a run for Slurm, made without asking it. Which devices the ranks get is known
    when they start. `in_sweep`: it is compared with others. Raises SpecError."""
    job, checked = script.asked_of(spec), script.placed(spec)
    plan = resolve(checked, python=sys.executable, base=base)  # each node finds its own
    kind = "CPU slot" if script.on_cpu(spec) else "GPU"
    told = [units.counted(job.nodes, "node"), f"{units.counted(job.per_node, kind)} each"] \
        if job.nodes > 1 else [units.counted(job.per_node, kind)]
    asked = replace(spec, parallel=replace(spec.parallel, mode=checked.spec.parallel.mode))
    return replace(plan, warnings=without_effect.told(asked, without_effect.SLURM,
                                                      in_sweep=in_sweep),
                   spec=spec, ranks=(), processes=(), lines=(engine_line(spec, base),),
                   chosen=f"Slurm chooses: {', '.join([*told, *job.options])}")


def can_be_asked() -> bool:
    """Whether Slurm is on this machine, and devices.hosts=slurm means it. Raises UserError."""
    return shutil.which("sbatch") is not None and not _a_host()


def script_of(spec: RunSpec, run: str | None = None) -> str:
    """The batch script for a run from this folder. `run`: its folder; None: the job makes it.
    Raises as `batch_script`."""
    return script.batch_script(spec, Place(working_folder(), str(paths.home())), run)


def submit(prepared: Prepared, *, tags: Sequence[str] = (), member: Member | None = None,
           options: Sequence[str] = (), note: Callable[[Run], None] = lambda _: None
           ) -> tuple[Run, jobs.Job]:
    """Make a run folder with the batch script in it and submit that. The script's own output goes
    to its supervisor.log, each rank's to `ranks/`. `member`: its place in a sweep. `options`:
    further ones of sbatch, for this submission alone. `note`: called with the run before its job
    can begin.

    Raises SpecError and UserError as `batch_script`, and UserError with sbatch's words if the job
    is refused; the run folder is then removed.
    """
    if shutil.which("sbatch") is None:
        raise UserError("sbatch is not installed on this machine: submit from a machine of the "
                        "cluster, or write the script (gpu-engine slurm … --output) and take it "
                        "there")
    with new_folder(prepared, tags=tags, member=member) as (run, lock):
        note(run)
        there = _submitted(run, prepared.spec, working_folder(), lambda: None, options)
    os.close(lock)
    return run, there


def again(run: Run, spec: RunSpec, checkpoint: str | None = None) -> LaunchPlan:
    """Submit another attempt of an ended run, which was submitted before, with `spec`. It goes on
    from `checkpoint`; None: from the newest. Raises as `submit`; the run is then as it was."""
    known = jobs.read(run.path)
    if known is None or known.request is None:
        raise UserError(f"run {run.id} was not submitted by gpu-panel")
    if spec.devices.hosts is None:  # it was submitted before a spec could say so
        asked = known.request
        options = {text.partition("=")[0]: text.partition("=")[2] for text in asked.options}
        spec = for_slurm(spec, nodes=asked.nodes, per_node=asked.per_node, options=options)
    plan, stopped = plan_of(spec), jobs.asked_to_stop(run.path)
    if checkpoint is not None:
        plan = replace(plan, resume_from=ResumeFrom(checkpoint, run.state().attempt + 1))
    locks = list[int]()
    try:
        (run.path / jobs.STOP).unlink(missing_ok=True)
        # Its ranks are seconds away: the interpreter has to start, and torch to be imported.
        _submitted(run, spec, run.cwd(), lambda: locks.append(
            reopen_run(run, to_toml(spec), plan)))
    except BaseException:
        with contextlib.suppress(OSError):
            if stopped:
                jobs.ask_to_stop(run.path)
        raise
    finally:
        for lock in locks:
            os.close(lock)
    return plan


def for_slurm(spec: RunSpec, *, nodes: int | None, per_node: int | None,
              options: Mapping[str, str]) -> RunSpec:
    """A spec for any machine as one for Slurm: its devices are counted and no longer named."""
    devices, p = spec.devices, spec.parallel
    count = per_node or (len(devices.ids) if devices.ids else devices.pick or 1)
    slots = ":" + ",".join(f"cpu:{i}" for i in range(count)) if script.on_cpu(spec) else ""
    return replace(
        spec, devices=replace(devices, ids=None, pick=None if slots else count,
                              hosts=[f"{SLURM}{slots}"]),
        parallel=replace(p, nodes=nodes or modes.get(p.mode).nodes(p.nodes)),
        run=replace(spec.run, sbatch={**spec.run.sbatch, **options}))


def _submitted(run: Run, spec: RunSpec, folder: str, then: Callable[[], object],
               options: Sequence[str] = ()) -> jobs.Job:
    """Submit the run's job and do `then`, before the job is noted in the run's folder. Where that
    can't be done, the job is cancelled. Raises UserError."""
    job = script.asked_of(spec)
    keys = [option.partition("=")[0] for option in (*job.options, *options)]
    for key in keys:
        if key in ("output", "error"):
            raise UserError(f"-o {key}: the output of a submitted run goes into its run folder; "
                            "gpu-engine logs prints it")
    text = script.batch_script(spec, Place(folder, str(paths.home())), str(run.path))
    with telling(f"{run.path / jobs.SCRIPT}: can't be written"):
        write_inside(run.path, jobs.SCRIPT, text)
    try:
        number = commands.submit(
            run.path / jobs.SCRIPT, folder, script.pattern(str(run.path), jobs.OUTPUT),
            options=options, without=(*_INHERITED, *keys))
    except SlurmError as err:
        raise UserError(f"the job was not submitted: {err}") from None
    there = jobs.Job(number, request=job)
    try:
        with telling(f"{run.path} can't be written"):
            then()
            jobs.write(run.path, there)
    except BaseException as err:
        what, why = f"job {number} is submitted, but {err}", None
        try:
            commands.cancel(number)
        except SlurmError as refused:
            why = f"cancel it with scancel {number} ({refused})"
        if isinstance(err, UserError):
            raise UserError(f"{what}; {why or 'it was cancelled'}") from None
        raise
    return there
