"""Slurm as a place. Its line is its own, so that a run is submitted when it is started, and its
nodes have the files that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common.errors import SpecError
from gpu_engine.devices.records import Inventory
from gpu_engine.interpreters import choose
from gpu_engine.launching import environment as noting
from gpu_engine.launching import launcher, notifier, preflight
from gpu_engine.launching.launcher import Prepared
from gpu_engine.runs import environment, job
from gpu_engine.runs.create import working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.slurm import submit
from gpu_engine.slurm.script import placed
from gpu_engine.spec.schema import RunSpec

_ITS_OWN = Inventory((), "nvml")


def devices(spec: RunSpec) -> Inventory:
    """It chooses them."""
    return _ITS_OWN


def prepare(spec: RunSpec, *, base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            in_sweep: bool = False, **_: object) -> Prepared:
    """`verbs.prepare`."""
    plan = submit.plan_of(spec, base, in_sweep=in_sweep)
    if problems := preflight.lasting(placed(spec).spec, Inventory((), plan.source), cwd,
                                     choose.of_spec(spec, cwd)):
        raise SpecError(problems)
    return Prepared(spec, _ITS_OWN, launcher.warned(plan, notifier.doubt()))


def start(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = (),
          member: Member | None = None, options: Sequence[str] = (), kept: Kept | None = None
          ) -> Run:
    """`verbs.start`. `member`, `options`: as for `slurm.submit.submit`. `kept`: its code, if that
    is kept already."""
    code = kept or keep(prepared.spec, Path(working_folder()))
    run, _ = submit.submit(
        prepared, tags=tags, member=member, options=options,
        note=lambda run: noting.note(run, prepared.plan, prepared.inventory, code))
    if tell:
        notifier.start(run)
    return run


def again(run: Run, spec: RunSpec, start: str = "newest") -> Prepared:
    """`launcher.again`, with the code as it is now."""
    chosen = launcher.checkpoint_of(run, spec, start)
    known = job.read(run.path)
    if known is None or known.request is None:  # of a script that a person has submitted
        return launcher.start_again(run, spec, chosen)
    before = environment.read(run.path)
    # Before the submission: the job may begin at once, and looks for its code.
    noting.note(run, run.require_plan(), _ITS_OWN, keep(spec, Path(run.cwd())))
    try:
        prepared = Prepared(spec, _ITS_OWN, submit.again(run, spec, chosen))
    except BaseException:
        with suppress(OSError):
            environment.write(run.path, before)
        raise
    notifier.start(run)
    return prepared
