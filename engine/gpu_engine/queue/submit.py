"""Putting a run into the line: what it is checked for, and what is kept of the moment."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common import paths
from gpu_engine.common.errors import Problem, SpecError, UserError, telling
from gpu_engine.devices.records import Inventory
from gpu_engine.interpreters import choose
from gpu_engine.launching import ask_torch, environment
from gpu_engine.launching.launcher import discover_for, planned, supervise
from gpu_engine.launching.preflight import lasting
from gpu_engine.plan.check import check, counted, names_none
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.queue.turns import early
from gpu_engine.runs import disk_room, folder, waiting
from gpu_engine.runs.create import create_run, discard, reopen_run, working_folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.runs.sweep import write as write_member
from gpu_engine.runs.waiting import Entry
from gpu_engine.spec import catalog, modes
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_toml

_SPAN = re.compile(r"\+(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_LONGEST = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class When:
    """When a waiting run may start, and before which others."""

    after: str | None = None
    """The id of the run that has to complete first."""
    begin: float | None = None
    """Unix seconds."""
    priority: int = 0


def moment(text: str, now: float) -> float:
    """The Unix seconds that `text`, as a person gives it ("22:00", "+90m", "2026-11-23 22:00"),
    means, after `now`: an hour of the day is the next one. In the
    machine's time zone. Raises UserError if it is no time, has passed, or is over a year away."""
    found = _moment(text.strip(), now)
    if found is None:
        raise UserError(f"--begin {text}: no time that is understood; give 22:00, +90m, or "
                        "2026-11-23 22:00")
    if found < now - 60:
        raise UserError(f"--begin {text}: that has passed")
    if found > now + _LONGEST:
        raise UserError(f"--begin {text}: that is more than a year away")
    return found


def _moment(text: str, now: float) -> float | None:
    if (span := _SPAN.fullmatch(text)) is not None:
        return now + float(span[1]) * _SECONDS[span[2]]
    today = dt.datetime.fromtimestamp(now)
    try:
        if (clock := _CLOCK.fullmatch(text)) is None:
            return dt.datetime.fromisoformat(text).timestamp()
        then = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (then + dt.timedelta(days=then <= today)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Submission:
    """Runs that are submitted together share what does not change between them: the devices that
    were found, and the code."""

    inventory: Inventory
    kept: Kept
    folder: Path


def prepare(spec: RunSpec, inventory: Inventory | None = None) -> Submission:
    """Look at what `submit` needs, once for all runs like `spec`. Keeps the code. `inventory`: the
    devices, if they have been found already. Raises UserError."""
    here = Path(working_folder())
    return Submission(inventory or discover_for(spec), keep(spec, here), here)


def plan(spec: RunSpec, inventory: Inventory, base: tuple[str, RunSpec] | None = None,
         cwd: Path | None = None, *, after: str | None = None) -> LaunchPlan:
    """The plan of a run that is to wait, in `cwd` (None: this process's folder): which of several
    devices it gets is not known yet, so only a run that names its devices has ranks in it. `after`:
    the run that it waits for, which may still write the files that it names. Raises SpecError with
    everything that waiting would not cure."""
    spec = counted(spec)
    if problems := _not_to_wait(spec):  # what this machine's devices say of it is beside the point
        raise SpecError(problems)
    checked = check(spec, inventory)
    taken = choose.of_spec(spec)
    problems = [*checked.problems, *lasting(spec, inventory, cwd, taken, files=after is None)]
    if problems:
        raise SpecError(problems)
    made = planned(checked, taken, base=base, environ={})
    return made if spec.devices.ids else replace(made, ranks=(), processes=())


def ask(specs: Sequence[RunSpec], folder: Path) -> None:
    """Have tasks that check their parameters themselves do so, in the ranks' interpreter: a run
    should not wait for hours to be refused then. Raises SpecError with what they refuse, UserError
    where a task can't be imported."""
    asking: dict[tuple[str, str | None], list[RunSpec]] = {}
    for spec in specs:
        with contextlib.suppress(UserError):  # only the ranks' interpreter may know its module
            if spec.task.use is not None and catalog.describe(spec.task.use, cwd=folder).checks:
                asking.setdefault((spec.task.use, spec.run.python), []).append(spec)
    for (use, _), found in asking.items():
        taken = choose.of_spec(found[0], folder)
        said = ask_torch.refused(use, [s.task.params for s in found],
                                 python=taken.python if taken is not None else None,
                                 folder=folder)
        if any(said):
            raise SpecError([Problem("", None, why) for why in dict.fromkeys(said) if why])


def submit(spec: RunSpec, when: When, prepared: Submission | None = None, *,
           base: tuple[str, RunSpec] | None = None, member: Member | None = None,
           begin: bool = True) -> Run:
    """Put a run into the line and return it at once. `member`: its place in a sweep, whose tasks
    were asked already. `begin`: start its supervisor; if not, call `serve.ensure`. Raises SpecError
    with everything that does not fit, UserError where the run can't be kept."""
    _check(when)
    prepared = prepared or prepare(spec)
    made = plan(spec, prepared.inventory, base, after=when.after)
    if member is None:
        ask([spec], prepared.folder)
    disk_room.require(paths.runs_folder())
    queue = paths.queue_folder()
    with telling(f"{queue}: can't be written"):
        folder.private_folder(queue)
        entry = _entry(spec, when, prepared, queue, member.sweep if member is not None else None)
    run, lock = create_run(spec.name, to_toml(spec), made)
    try:
        with telling(f"{run.path}: can't be written"):
            if member is not None:
                write_member(run.path, member)
            waiting.enter(run.path)
            waiting.write(run.path, entry)
    except BaseException:
        os.close(lock)
        _take_back(run)
        raise
    if not begin:
        os.close(lock)
        return run
    try:
        supervise(run, lock)
    except UserError:
        _take_back(run)
        raise
    environment.note(run, made, prepared.inventory)
    return run


def _take_back(run: Run) -> None:
    with contextlib.suppress(OSError):
        waiting.leave(run.path)
    discard(run)


def submit_again(run: Run, spec: RunSpec, when: When, inventory: Inventory, sweep: str) -> None:
    """Put a member of a sweep that has ended into the line for its next attempt with `spec`, which
    goes on from its newest checkpoint that loads. It uses the code as it is then, as a resume does.
    Then call `serve.ensure`. Raises as `submit`, and UserError while the run is live."""
    _check(when)
    state = run.state()
    if state.live:
        raise UserError(f"run {run.id} is {state.state}; stop it first")
    kept = Submission(inventory, Kept(), Path(run.cwd()))
    made = plan(spec, inventory, cwd=kept.folder, after=when.after)
    ask([spec], kept.folder)
    disk_room.require(run.path)
    run.end_leftovers()  # what a killed supervisor left would write where the next one writes
    before = run.plan()
    queue = folder.private_folder(paths.queue_folder())
    lock = reopen_run(run, to_toml(spec),
                      replace(made, origin=before.origin if before is not None else None))
    try:
        with telling(f"run {run.id} can't be queued"):
            waiting.enter(run.path)
            waiting.write(run.path, _entry(spec, when, kept, queue, sweep))
    finally:
        os.close(lock)


def _not_to_wait(spec: RunSpec) -> list[Problem]:
    if names_none(spec):
        return [Problem("devices.pick", None,
                        f"{modes.get(spec.parallel.mode).label} takes all free devices, and "
                        "their number is not known yet: say how many to wait for (-n 2)")]
    if spec.devices.hosts is not None:
        return [Problem("devices.hosts", spec.devices.hosts,
                        "the queue waits for devices of this machine only; start a run on hosts "
                        "at once, or submit it to Slurm")]
    if modes.get(spec.parallel.mode).several_nodes:
        return [Problem("parallel.mode", spec.parallel.mode,
                        "the queue waits for devices of this machine only, and the other nodes "
                        "would wait for this one in vain; start it at once")]
    return []


def _check(when: When) -> None:
    """Raises UserError if it could never start."""
    if when.after is not None:
        first = Run(paths.runs_folder() / when.after)
        state = first.state().state if first.path.is_dir() else None
        entry = Entry(submitted=0.0, number=0.0, host="", after=when.after)
        if (never := early(entry, state, 0.0)) is not None and never[1]:
            raise UserError(f"--after {when.after}: {never[0]}")


def _entry(spec: RunSpec, when: When, prepared: Submission, queue: Path, sweep: str | None
           ) -> Entry:
    """Raises OSError."""
    devices, inventory = spec.devices, prepared.inventory
    named = [inventory.find(i) for i in devices.ids or ()]
    some = any(d.visible_index is not None for d in inventory.devices) \
        and inventory.inherited_visible is not None
    return Entry(
        submitted=time.time(), number=waiting.next_number(queue), host=socket.gethostname(),
        priority=when.priority,
        ids=tuple(d.uuid or d.id for d in named if d is not None),
        count=0 if devices.ids else devices.pick or 1,
        within=tuple(d.uuid or d.id for d in inventory.devices) if some else (),
        free=None if devices.free_gib is None else int(devices.free_gib * (1 << 30)),
        share=devices.share, cpu=any(d.is_cpu for d in inventory.devices),
        after=when.after, begin=when.begin, sweep=sweep,
        code=prepared.kept.name, root=prepared.kept.root, folder=str(prepared.folder))
