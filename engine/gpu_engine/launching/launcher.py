"""From a spec to a detached run on this machine. What is launched anywhere: `places/verbs.py`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, TooFew, UserError, telling
from gpu_engine.common.files import open_inside
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Inventory
from gpu_engine.launching import environment, fit, logind, notifier, preflight
from gpu_engine.plan import without_effect
from gpu_engine.plan.build import resolve
from gpu_engine.plan.check import Checked, check, counted, names_none
from gpu_engine.plan.records import LaunchPlan, ResumeFrom
from gpu_engine.runs import attempts, checkpoints, disk_room, leftovers, notes, sweep, waiting
from gpu_engine.runs.create import create_run, discard, reopen_run, settle
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.runs.waiting import Wants
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

if TYPE_CHECKING:
    from gpu_engine.interpreters.choose import Chosen
    from gpu_engine.remote.run.parts import Part


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec that was checked and planned, but not started yet."""

    spec: RunSpec
    inventory: Inventory
    plan: LaunchPlan
    parts: tuple[Part, ...] = ()
    """The part of each host, if the run is on hosts."""
    wants: Wants | None = None
    """By what its host was chosen, if it was: another one may start it."""


def prepare(spec: RunSpec, *, inventory: Inventory | None = None,
            base: tuple[str, RunSpec] | None = None, cwd: Path | None = None,
            in_turn: str | None = None, near: Path | None = None, only_plan: bool = False,
            in_sweep: bool = False, again: bool = False) -> Prepared:
    """Resolve everything that a launch on this machine would: pick devices, check, plan. No side
    effects. only_plan: nothing but the plan is used; that devices are in use is only a warning.

    Whether devices that are named are free is judged here unless `inventory` is given. The
    supervisor checks the devices again before the ranks start. `in_turn`: the run has waited for
    its devices, holds them by now under this id, and overtakes nobody.

    near: the folder from which virtual environments are looked for; None: `cwd`.

    in_sweep: it is compared with the others of its sweep.

    again: it is another attempt, and has a place in the line to go back to if it had one.

    Raises SpecError with all that does not fit, UserError where too few devices are free.
    """
    paths.runs_folder()  # where no run could be kept, none is planned
    alone = inventory is None
    inventory = inventory or devices(spec)
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
    no_room = [] if in_turn or again else without_effect.no_room(spec)
    if not only_plan:
        problems += no_room
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
    return Prepared(spec, inventory, warned(
        resolved, inventory.problem if narrowed else None, none_free, too_many,
        *map(str, no_room),
        *without_effect.told(spec, in_sweep=in_sweep), *warnings, logind.here(), notifier.doubt()))


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


def warned(plan: LaunchPlan, *said: str | None) -> LaunchPlan:
    """`plan` with these warnings, where there are any."""
    return replace(plan, warnings=(*plan.warnings, *filter(None, said)))


def only_trying(prepared: Prepared) -> Prepared:
    """`prepared`, with ranks that only try their connection and do not train."""
    processes = tuple(replace(p, argv=(*p.argv, "--check")) for p in prepared.plan.processes)
    return replace(prepared, plan=replace(prepared.plan, processes=processes),
                   parts=tuple(replace(p, trying=True) for p in prepared.parts), wants=None)


@contextmanager
def new_folder(prepared: Prepared, attempt: int = 1, *, tags: Sequence[str],
               member: Member | None = None, settled: bool = True) -> Iterator[tuple[Run, int]]:
    """Make the run folder, with `attempt` as the first; yields the run and the descriptor that
    holds its lock. What is written inside this block is part of it: where that fails there is no
    folder. `settled`: as for `create_run`. `tags`, `member`: what is written on it, and its place
    in a sweep. Raises UserError."""
    disk_room.require(paths.runs_folder())
    run, lock = create_run(prepared.spec.name, to_toml(prepared.spec), prepared.plan, attempt,
                           settled=settled)
    try:
        with telling(f"{run.path}: can't be written"):
            if member is not None:
                sweep.write(run.path, member)
            notes.tag(run.path, tags)
            yield run, lock
    except BaseException:
        os.close(lock)
        discard(run)
        raise


def start(prepared: Prepared, *, attempt: int = 1, tell: bool = True, tags: Sequence[str] = (),
          keep: Callable[[Run], None] = lambda run: None) -> Run:
    """Make the run folder and start its supervisor, with `attempt` as the first. `tell`: whether
    those in notify.toml are told of it. `tags`: what it is tagged with from the start. `keep`:
    writes what else belongs into the folder. Raises UserError where that can't be, as on a disk
    that is full."""
    with new_folder(prepared, attempt, tags=tags, settled=False) as (run, lock):
        keep(run)
    supervise(run, lock, tell=tell)
    settle(run)
    environment.note(run, prepared.plan, prepared.inventory)
    return run


def make_way(run: Run) -> None:
    """See that another attempt can write into the run folder. Raises UserError."""
    if run.state().live:
        raise UserError(f"run {run.id} is running; stop it first")
    disk_room.require(run.path)
    run.end_leftovers()  # what a killed supervisor left would write where we write


def open_again(run: Run, prepared: Prepared, attempt: int | None = None,
               keep: Callable[[], None] = lambda: None) -> None:
    """Start another attempt of an ended run as it was prepared, `attempt` or the next. `keep`:
    writes what else belongs into the folder. Raises UserError."""
    lock = reopen_run(run, to_toml(prepared.spec), prepared.plan, attempt=attempt)
    with telling(f"{run.path}: can't be written"):
        keep()
    supervise(run, lock)
    environment.note(run, prepared.plan, prepared.inventory)


def again(run: Run, spec: RunSpec, start: str) -> Prepared:
    """Start another attempt of an ended run with `spec`, from the checkpoint that `start` means.
    Raises as `verbs.resume`."""
    return start_again(run, spec, checkpoint_of(run, spec, start))


def checkpoint_of(run: Run, spec: RunSpec, start: str) -> str | None:
    """The name of the checkpoint that `start` means; None: the newest that loads. Raises as
    `verbs.resume`."""
    if start != "newest" and spec.task.command is not None:
        raise UserError(f"run {run.id} runs a command of your own, whose checkpoints are its own: "
                        "it can't be told which to go on from")
    chosen = checkpoints.choose(run.checkpoints, start, spec.train.best)
    attempts.check_length(run, spec, chosen)
    return chosen


def start_again(run: Run, spec: RunSpec, checkpoint: str | None = None,
                attempt: int | None = None) -> Prepared:
    """Start another attempt of an ended run, `attempt` or the next, with `spec`, from
    `checkpoint`; None: from the newest that loads. Returns at once. Raises as `resume`."""
    make_way(run)
    before = run.plan()
    found = before.interpreter if before is not None else None
    near = Path(found.folder) if found is not None and found.folder else None
    prepared = prepare(spec, cwd=Path(run.cwd()), near=near,
                       in_sweep=sweep.read(run.path) is not None,
                       again=waiting.read(run.path, waiting.PLACE) is not None)
    resolved = replace(prepared.plan, origin=before.origin if before is not None else None,
                       part_of=before.part_of if before is not None else None)
    if checkpoint is not None:
        resolved = replace(resolved, resume_from=ResumeFrom(
            checkpoint, attempt or run.state().attempt + 1))
    prepared = replace(prepared, plan=resolved)
    open_again(run, prepared, attempt)
    return prepared


def supervise(run: Run, lock: int, *, tell: bool = True) -> None:
    """Start the supervisor, or for a run on hosts the process that mirrors them. It inherits the
    lock, so that there is no moment in which nobody holds it. `tell`: whether those in notify.toml
    are told of the run. Raises UserError where it can't be started."""
    waits = waiting.read(run.path)
    module = "gpu_engine.remote.run" if (waits is not None and waits.hosts) \
        or (run.path / leftovers.HOSTS).is_dir() else "gpu_engine.supervisor"
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


def devices(spec: RunSpec) -> Inventory:
    """The devices that `spec` chooses from: CPU slots where it names them, although the
    machine has GPUs. Raises UserError."""
    ids = spec.devices.ids
    if ids and all(i.startswith("cpu:") for i in ids):
        return cpu_slots()
    return discover()


def pick(spec: RunSpec, inventory: Inventory) -> RunSpec:
    """Turn `devices.pick` into `devices.ids`: the freest by the rule of `devices.availability`. A
    spec that names no devices gets the freest one, or all that are free if its mode uses several.

    Where too few are free it takes GPUs whose runs make room, and waits for that as for named ones.
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
        free=None if gib is None else int(gib * (1 << 30)), share=spec.devices.share, room=True)
    devices = replace(spec.devices, ids=[d.id for d in chosen], pick=None, free_gib=None)
    return replace(spec, devices=devices)
