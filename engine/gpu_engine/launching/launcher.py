"""From a spec to a detached run: what panel, command line and scripts call to launch and resume."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, TooFew, UserError, telling
from gpu_engine.common.files import open_inside
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Inventory
from gpu_engine.launching import environment, fit, logind, notifier, preflight
from gpu_engine.plan import without_effect
from gpu_engine.plan.build import resolve
from gpu_engine.plan.check import Checked, check, chooses_host, counted, names_none
from gpu_engine.plan.records import LaunchPlan, ResumeFrom
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import attempts, checkpoints, disk_room, job, notes, sweep, trust, waiting
from gpu_engine.runs import environment as runs_environment
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run, discard, reopen_run, settle, working_folder
from gpu_engine.runs.sweep import Member
from gpu_engine.runs.waiting import Entry, Wants
from gpu_engine.spec.catalog import BUILTIN
from gpu_engine.spec.host_names import SLURM
from gpu_engine.spec.read import apply_sets, from_dict
from gpu_engine.spec.schema import BatchSpec, RunSpec, TaskSpec
from gpu_engine.spec.write import to_toml

if TYPE_CHECKING:
    from gpu_engine.interpreters.choose import Chosen


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec that was checked and planned on this machine, but not started yet."""

    spec: RunSpec
    inventory: Inventory
    plan: LaunchPlan
    parts: tuple[Part, ...] = ()
    """The part of each host, if the run is on hosts."""
    wants: Wants | None = None
    """By what its host was chosen, if it was: another one may start it."""
    on_slurm: bool = False
    """Whether it is to be submitted as a job of Slurm."""


def prepare(spec: RunSpec, *, inventory: Inventory | None = None,
            base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            in_turn: str | None = None, near: Path | None = None, only_plan: bool = False,
            in_sweep: bool = False) -> Prepared:
    """Resolve everything a launch would: pick devices, check, plan. No side effects, except that
    with run.sync each host is sent the code that it lacks, as its checks run in that folder.

    only_plan: nothing but the plan is used. Hosts are then sent nothing and check all but the task,
    and it is only a warning that devices of this machine are in use.

    Whether devices that are named are free is judged here unless `inventory` is given. The
    supervisor checks the devices again before the ranks start. `in_turn`: the run has waited for
    its devices, holds them by now under this id, and overtakes nobody.

    near: the folder from which virtual environments are looked for; None: `cwd`.

    in_sweep: it is compared with the others of its sweep.

    Raises SpecError with all that does not fit, UserError where too few devices are free.
    """
    if is_for_slurm(spec):
        return prepare_for_slurm(spec, base, cwd, in_sweep=in_sweep)
    if spec.devices.hosts is not None:
        from gpu_engine.remote.run.prepare import prepare as over_hosts

        def there(spec: RunSpec) -> Prepared:
            return Prepared(*over_hosts(spec, base=base, cwd=cwd, send=not only_plan,
                                        in_sweep=in_sweep))

        chosen = wants = None
        if chooses_host(spec):
            from gpu_engine.remote.run.freest import resolve as choose_host

            prepared, chosen, wants = choose_host(spec, there, only_plan=only_plan)
        else:
            prepared = there(spec)
        plan = replace(prepared.plan, chosen=chosen)
        # It is no job: `is_for_slurm` has said so.
        host = "slurm is a host of yours, and means it; Slurm itself is devices.hosts=slurm:" \
            "PARTITION" if any(h.partition(":")[0] == SLURM for h in spec.devices.hosts) else None
        return replace(prepared, plan=_warned(plan, host, notifier.doubt()), wants=wants)
    paths.runs_folder()  # where no run could be kept, none is planned
    alone = inventory is None
    inventory = inventory or discover_for(spec)
    named, asked = spec.devices.ids, counted(spec)
    none_free: str | None = None
    try:
        spec = pick(spec, inventory)
    except TooFew as err:
        if not only_plan:
            raise
        none_free = f"it can't start now: {err}"  # the plan is of the first devices
    checked = check(spec, inventory)
    from gpu_engine.interpreters import choose  # no list of runs needs it

    taken = choose.of_spec(spec, near or cwd)
    # Devices that were chosen here, or by the queue, were free a moment ago.
    problems, warnings = preflight.judge(
        spec, inventory, cwd, taken,
        free=bool(named) and alone and not in_turn and not checked.problems, only_plan=only_plan,
        holder=in_turn)
    if problems or checked.problems:
        raise SpecError([*checked.problems, *problems])
    resolved = replace(planned(checked, taken, base=base),
                       chosen=_why(asked, spec, inventory))
    too_many = None
    if found := fit.known(spec, [d for d in map(inventory.find, spec.devices.ids or ()) if d]):
        resolved = replace(resolved, fits=found[1])
        if resolved.batch.per_gpu > found[0]:
            too_many = f"{resolved.batch.per_gpu:,} per {resolved.unit} may not fit: {found[1]}"
    # What is wrong with the list of devices that this process has inherited.
    narrowed = inventory.inherited_visible is not None and not inventory.is_cpu
    return Prepared(spec, inventory, _warned(
        resolved, inventory.problem if narrowed else None, none_free, too_many,
        *without_effect.told(spec, in_sweep=in_sweep), *warnings, logind.here(), notifier.doubt()))


def is_for_slurm(spec: RunSpec) -> bool:
    """Whether the run is for Slurm, and for no host that is called so. Raises UserError."""
    if SLURM not in str(spec.devices.hosts):
        return False
    from gpu_engine.slurm import submit

    return submit.is_meant(spec)


def prepare_for_slurm(spec: RunSpec, base: tuple[str, RunSpec] | None = None,
                      cwd: Path | None = None, *, in_sweep: bool = False) -> Prepared:
    """`prepare` for a run on Slurm, whose nodes have the files that this machine has. Raises
    SpecError."""
    from gpu_engine.interpreters import choose
    from gpu_engine.slurm import script, submit

    plan = submit.plan_of(spec, base, in_sweep=in_sweep)
    none_here = Inventory((), plan.source)
    if problems := preflight.lasting(script.placed(spec).spec, none_here, cwd,
                                     choose.of_spec(spec, cwd)):
        raise SpecError(problems)
    return Prepared(spec, none_here, _warned(plan, notifier.doubt()), on_slurm=True)


def submit_to_slurm(prepared: Prepared, *, tell: bool = True, tags: Sequence[str] = (),
                    member: Member | None = None, options: Sequence[str] = (),
                    kept: Kept | None = None) -> runs.Run:
    """`start` for a run on Slurm. `member`, `options`: as for `slurm.submit.submit`. `kept`: its
    code, if that is kept already. Raises as that."""
    from gpu_engine.slurm import submit

    code = kept or keep(prepared.spec, Path(working_folder()))
    run, _ = submit.submit(
        prepared.spec, prepared.plan, tags=tags, member=member, options=options,
        note=lambda run: environment.note(run, prepared.plan, prepared.inventory, code))
    if tell:
        notifier.start(run)
    return run


def submit_again(run: runs.Run, spec: RunSpec, checkpoint: str | None = None) -> LaunchPlan:
    """Submit another attempt of an ended run on Slurm, with the code as it is now. It goes on from
    `checkpoint`; None: from the newest. Raises as `slurm.submit.submit`; the run is then as it
    was."""
    from gpu_engine.slurm.submit import again

    before = runs_environment.read(run.path)
    # Before the submission: the job may begin at once, and looks for its code.
    environment.note(run, run.require_plan(), Inventory((), "nvml"), keep(spec, Path(run.cwd())))
    try:
        plan = again(run, spec, checkpoint)
    except BaseException:
        with contextlib.suppress(OSError):
            runs_environment.write(run.path, before)
        raise
    notifier.start(run)
    return plan


def planned(checked: Checked, taken: Chosen | None, *, base: tuple[str, RunSpec] | None = None,
            environ: Mapping[str, str] = os.environ) -> LaunchPlan:
    """`plan.build.resolve` with this interpreter, which the plan then tells of. None: with our own.
    Raises SpecError."""
    python = taken.python if taken is not None else None
    plan = resolve(checked, python=python or sys.executable, base=base, environ=environ)
    return plan if taken is None else replace(plan, interpreter=taken.record())


def _why(asked: RunSpec, spec: RunSpec, inventory: Inventory) -> str | None:
    """Which devices were chosen for what was asked, in words; None: they were named."""
    chosen = [d for d in map(inventory.find, spec.devices.ids or ()) if d is not None]
    if asked.devices.ids or not chosen:
        return None
    taken, many = len(chosen), len(inventory.devices)
    if taken == many:
        how = "all that there are" if many > 1 else "the only one"
    elif asked.devices.pick is None:
        how = f"all that are free of {many}"
    else:
        how = f"the freest of {many}" if taken == 1 else f"the {taken} freest of {many}"
    return f"on {', '.join(d.label for d in chosen)}: {how}"


def _warned(plan: LaunchPlan, *said: str | None) -> LaunchPlan:
    """`plan` with these warnings, where there are any."""
    return replace(plan, warnings=(*plan.warnings, *filter(None, said)))


def prepare_check(spec: RunSpec) -> Prepared:
    """`prepare` for the tiny job that only tries the connection between the ranks, whatever the
    spec would train. Raises as `prepare`."""
    task = TaskSpec(use=BUILTIN[0])
    size = BatchSpec(size=1, meaning="per_gpu")
    place = replace(spec.parallel, timeout=min(spec.parallel.timeout, 30.0))
    prepared = prepare(replace(spec, name=f"check {spec.name}"[:80], task=task, batch=size,
                               parallel=place, run=replace(spec.run, sync="none")))
    return only_trying(prepared)


def only_trying(prepared: Prepared) -> Prepared:
    """`prepared`, with ranks that only try their connection and do not train."""
    processes = tuple(replace(p, argv=(*p.argv, "--check")) for p in prepared.plan.processes)
    return replace(prepared, plan=replace(prepared.plan, processes=processes),
                   parts=tuple(replace(p, trying=True) for p in prepared.parts), wants=None)


def launch(spec: RunSpec, *, inventory: Inventory | None = None,
           base: tuple[str, RunSpec] | None = None) -> runs.Run:
    """Start a run, which goes on when this process ends, and return it at once. Raises as
    `prepare`, and UserError where the runs folder can't be written."""
    return start(prepare(spec, inventory=inventory, base=base))


def start(prepared: Prepared, *, attempt: int = 1, tell: bool = True, tags: Sequence[str] = ()
          ) -> runs.Run:
    """Make the run folder and start its supervisor, with `attempt` as the first. `tell`: whether
    those in notify.toml are told of it. `tags`: what it is tagged with from the start. Raises
    UserError where that can't be, as on a disk that is full."""
    if prepared.on_slurm:
        return submit_to_slurm(prepared, tell=tell, tags=tags)
    disk_room.require(paths.runs_folder())
    run, lock = create_run(prepared.spec.name, to_toml(prepared.spec), prepared.plan, attempt,
                           settled=False)
    try:
        _keep_parts(run, prepared.parts)
        notes.tag(run.path, tags)
        if (wants := prepared.wants) is not None:
            with telling(f"{run.path}: can't be written"):
                waiting.write(run.path, Entry(
                    **asdict(wants), submitted=time.time(), number=0, host=socket.gethostname(),
                    folder=run.cwd(), at_once=True))
    except UserError:
        os.close(lock)
        discard(run)
        raise
    supervise(run, lock, tell=tell)
    settle(run)
    environment.note(run, prepared.plan, prepared.inventory)
    return run


def resume(run: runs.Run, sets: Sequence[str] = (), *, start: str = "newest") -> Prepared:
    """Start another attempt of an ended run, from its newest checkpoint that loads, with the
    settings of the last one and `sets` (`key=value`) changed. Returns at once.

    start: "best" or a step goes on from that checkpoint, and from no other; those behind it are
    set aside in a folder of their own, once it has been verified.

    Raises UserError while it runs, where what is left of it can't be ended or there is no such
    checkpoint, SpecError where the changed spec does not fit, or asks for fewer steps than are
    done.
    """
    trust.require_ours(run.path)
    make_way(run)
    data = attempts.read_spec(run)
    apply_sets(data, sets)
    spec = from_dict(data)
    if parts.spans(run.path):
        trust.require_started(run.path)
        return _again_over_hosts(run, spec, start)
    if start != "newest" and spec.task.command is not None:
        raise UserError(f"run {run.id} runs a command of your own, whose checkpoints are its own: "
                        "it can't be told which to go on from")
    chosen = checkpoints.choose(run.checkpoints, start, spec.train.best)
    attempts.check_length(run, spec, chosen)
    known = job.read(run.path)
    if known is None or known.request is None:
        return start_again(run, spec, chosen)
    return Prepared(spec, Inventory((), "nvml"), submit_again(run, spec, chosen))


def make_way(run: runs.Run) -> None:
    """See that another attempt can write into the run folder. Raises UserError."""
    if run.state().live:
        raise UserError(f"run {run.id} is running; stop it first")
    disk_room.require(run.path)
    run.end_leftovers()  # what a killed supervisor left would write where we write


def _again_over_hosts(run: runs.Run, spec: RunSpec, start: str) -> Prepared:
    """`resume` for a run on hosts: each part continues where it is."""
    from gpu_engine.remote.run.prepare import prepare_again

    prepared = Prepared(*prepare_again(run, spec, start))
    lock = reopen_run(run, to_toml(prepared.spec), prepared.plan)
    _keep_parts(run, prepared.parts)
    supervise(run, lock)
    environment.note(run, prepared.plan, prepared.inventory)
    return prepared


def start_again(run: runs.Run, spec: RunSpec, checkpoint: str | None = None,
                attempt: int | None = None) -> Prepared:
    """Start another attempt of an ended run, `attempt` or the next, with `spec`, from
    `checkpoint`; None: from the newest that loads. Returns at once. Raises as `resume`."""
    make_way(run)
    before = run.plan()
    found = before.interpreter if before is not None else None
    near = Path(found.folder) if found is not None and found.folder else None
    prepared = prepare(spec, cwd=Path(run.cwd()), near=near,
                       in_sweep=sweep.read(run.path) is not None)
    resolved = replace(prepared.plan, origin=before.origin if before is not None else None,
                       part_of=before.part_of if before is not None else None)
    if checkpoint is not None:
        resolved = replace(resolved, resume_from=ResumeFrom(
            checkpoint, attempt or run.state().attempt + 1))
    supervise(run, reopen_run(run, to_toml(prepared.spec), resolved, attempt=attempt))
    environment.note(run, resolved, prepared.inventory)
    return prepared


def _keep_parts(run: runs.Run, told: Sequence[Part]) -> None:
    with telling(f"{run.path}: can't be written"):
        parts.write_instead(run.path, told)


def supervise(run: runs.Run, lock: int, *, tell: bool = True) -> None:
    """Start the supervisor, or for a run on hosts the process that mirrors them. It inherits the
    lock, so that there is no moment in which nobody holds it. `tell`: whether those in notify.toml
    are told of the run. Raises UserError where it can't be started."""
    waits = waiting.read(run.path)
    module = "gpu_engine.remote.run" if (waits is not None and waits.hosts) \
        or parts.spans(run.path) else "gpu_engine.supervisor"
    # Ctrl-C is the command's, which then stops the run. Until the new process has left the terminal
    # it gets the signal too, and would die of it with the run's lock.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        log = open_inside(run.path, "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        logind.start(log, module, str(run.path), str(lock), pass_fds=(lock,))
    except OSError as err:
        raise UserError(f"the supervisor of run {run.id} can't be started: {err}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(lock)
    if tell:
        notifier.start(run)


def discover_for(spec: RunSpec) -> Inventory:
    """The devices that `spec` chooses from: CPU slots where it names them, although the
    machine has GPUs; for one of several machines, those that it may have. Raises UserError."""
    if is_for_slurm(spec):  # it chooses them
        return Inventory((), "nvml")
    if chooses_host(spec):
        from gpu_engine.remote.run import freest

        spec, asked = freest.asked_of(spec)
        return freest.expected(freest.look(asked), spec.devices.pick or 1)
    ids = spec.devices.ids
    if ids and all(i.startswith("cpu:") for i in ids):
        return cpu_slots()
    return discover()


def pick(spec: RunSpec, inventory: Inventory) -> RunSpec:
    """Turn `devices.pick` into `devices.ids`: the freest by the rule of `devices.availability`. A
    spec that names no devices gets the freest one, or all that are free if its mode uses several.

    Raises TooFew saying what holds the others where there are too few, and UserError where the GPUs
    can't be used: a run that was meant for them does not begin on the processor unasked.
    """
    spec = counted(spec)
    count = spec.devices.pick
    if not (count or names_none(spec)) or not inventory.devices:
        return spec
    from gpu_engine.devices import availability, leases, sampler

    if inventory.problem and inventory.is_cpu and not inventory.hidden:
        slots = ",".join(d.id for d in inventory.devices[:count])
        raise UserError(f"no GPU can be used: {inventory.problem}. To "
                        f"train on the processor all the same, name its slots: devices.ids={slots}")
    if count is not None and count > len(inventory.devices):
        return spec  # plan.check says so, with what there is
    gib = spec.devices.free_gib
    chosen = availability.freest(
        count, sampler.take_several(inventory), leases.holders(paths.leases_folder()),
        free=None if gib is None else int(gib * (1 << 30)), share=spec.devices.share)
    devices = replace(spec.devices, ids=[d.id for d in chosen], pick=None, free_gib=None)
    return replace(spec, devices=devices)
