"""A sweep: the runs whose `sweep.json` names it. Putting all of them into the queue or none,
finding them, stopping them, and trying those again that have failed."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import locked, overwrite_inside
from gpu_engine.runs import attempts, job, trust, waiting
from gpu_engine.runs import sweep as record
from gpu_engine.runs.digest import By, Figures, compared_by, figures_of
from gpu_engine.runs.folder import Run, State, each_run, require_folder
from gpu_engine.runs.sweep import Member
from gpu_engine.spec.host_names import parse_all
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep import grid, kept
from gpu_engine.sweep.kept import Search
from gpu_engine.sweep.rungs import due
from gpu_engine.sweep.table import One, best_text, names, summary

if TYPE_CHECKING:
    from gpu_engine.devices.records import Inventory
    from gpu_engine.places.verbs import Followed
    from gpu_engine.plan.records import LaunchPlan
    from gpu_engine.queue.turns import When

# What starts runs is imported where that is done: to look needs none of it.

_ENDS = 10.0
"""Seconds in which the process of a sweep that was stopped ends."""

log = logging.getLogger(__name__)

Base = tuple[str, RunSpec] | None
"""(name, spec) of the preset that the spec is based on."""


# --- submitting ----------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that was submitted."""

    id: str
    runs: tuple[Run, ...]
    warnings: tuple[str, ...]
    """What a person should know of it, as how its code is kept."""


def plans(members: Sequence[grid.Member], inventory: Inventory | None = None, base: Base = None
          ) -> list[LaunchPlan]:
    """The plan of each member, made without side effects. Raises SpecError with what is wrong with
    the first of them that could not run."""
    from gpu_engine.places.verbs import meant_by
    from gpu_engine.queue.submit import plan

    inventory = inventory or meant_by(members[0].spec).devices(members[0].spec)
    found: list[LaunchPlan] = []
    for member in members:
        try:
            found.append(plan(member.spec, inventory, base, in_sweep=True))
        except SpecError as err:
            where = f"(run {member.index} of {len(members)}, {member.spec.name})"
            raise SpecError([replace(p, message=f"{p.message} {where}") for p in err.problems]
                            ) from None
    return found


def submit(members: Sequence[grid.Member], when: When, name: str, base: Base = None,
           tags: Sequence[str] = (), search: Search | None = None) -> Sweep:
    """Put all members into the line, with these tags. If one can't be, those before it are taken
    back. `search`: it asks for all members behind these. Raises SpecError before anything was
    submitted, UserError."""
    from gpu_engine.queue import serve
    from gpu_engine.queue import submit as queue
    from gpu_engine.runs.create import discard

    ours = [m.spec for m in members if m.spec.task.command or ".py:" in (m.spec.task.use or "")]
    prepared = queue.prepare(ours[0] if ours else members[0].spec)  # whose code is to be kept
    planned = plans(members, prepared.inventory, base)
    taken = {m.sweep for run in each_run() if (m := record.read(run.path)) is not None}
    while (ident := "s" + os.urandom(2).hex()) in taken:
        pass
    done, begun = list[Run](), time.time()
    try:
        for member in members:
            done.append(queue.submit(
                member.spec, when, prepared, base=base, begin=False, tags=tags,
                member=place(ident, name, member, begun, search, len(members))))
        if search is not None:  # with all seeds of the first there, as the next are asked for
            search.submitted(when, prepared, begun, tags, base).keep(paths.queue_folder(), ident)
        serve.ensure()
        if done and job.read(done[0].path) is not None and members[0].spec.run.halving:
            # Nothing of it waits in our own line, and yet its best are to go on.
            serve.start_sweep(require_folder(paths.queue_folder()), ident)
    except BaseException:
        for run in reversed(done):  # the next in the line last
            with contextlib.suppress(UserError, OSError):
                run.stop()
            if run.state().state == "stopped":  # one that was started meanwhile stays
                discard(run)
        raise
    told = dict.fromkeys(w for p in planned for w in p.warnings)
    return Sweep(ident, tuple(done), tuple(filter(None, (prepared.kept.doubt, *told))))


def place(ident: str, name: str, member: grid.Member, begun: float, search: Search | None,
          of: int = 0) -> Member:
    """What a member's folder has of its place in the sweep `ident`. `of`: as many members as that
    has, if it is no search."""
    from gpu_engine.plan.check import counted

    devices = counted(member.spec).devices
    made = Member(ident, name, member.index, of, begun, member.values, member.repeat,
                  devices.pick, devices.free_gib, axes=member.axes)
    return made if search is None else replace(made, of=search.of, search=search.how,
                                               axes=search.told())


# --- finding -------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Group:
    """A sweep: its members that are on disk, in the order of the grid."""

    id: str
    name: str
    begun: float
    """When it was submitted, Unix seconds."""
    of: int
    """How many members were to be submitted; of a search, so far."""
    members: tuple[tuple[Run, Member], ...]
    search: str | None = None
    """What asks for its values; None: all members were known at submission."""
    to_come: int = 0
    """How many more members a search may ask for, or might have if it was not stopped."""
    asks: bool = False
    """Whether it does."""

    @property
    def keys(self) -> list[str]:
        """The keys that vary."""
        return list(self.members[0][1].values)

    def summary(self, members: Sequence[One]) -> str:
        """How many of its members have ended how."""
        return summary(self.of, members, self.to_come, asks=self.asks)


def all_groups() -> list[Group]:
    """All sweeps, the newest first."""
    found: dict[str, list[tuple[Run, Member]]] = {}
    for run in each_run():
        member = record.read(run.path)
        if member is not None:
            found.setdefault(member.sweep, []).append((run, member))
    groups = []
    for pairs in found.values():
        pairs.sort(key=lambda pair: (pair[1].index, pair[0].id))
        keys = dict.fromkeys(key for _, member in pairs for key in member.values)
        # A member whose record was changed by hand lacks some: all lines have the same columns.
        members = tuple((run, replace(m, values={k: m.values.get(k, "") for k in keys}))
                        for run, m in pairs)
        first = pairs[0][1]
        of = first.of if first.search is None else pairs[-1][1].index
        queue, ident = paths.queue_folder(), first.sweep
        asks = first.search is not None and waiting.search_file(queue, ident).exists()
        more = first.of - of if asks or (first.search and kept.is_stopped(queue, ident)) else 0
        groups.append(Group(ident, clean(first.name), first.begun, of, members,
                            first.search and clean(first.search), more, asks))
    return sorted(groups, key=lambda g: -g.begun)


def find(name: str) -> Group:
    """The sweep with this id, or whose id begins so, or the newest for "last". Raises UserError."""
    groups = all_groups()
    if not groups:
        raise UserError("there are no sweeps yet; gpu-engine run PRESET --grid KEY=V1,V2 submits "
                        "one")
    if name == "last":
        return groups[0]
    found = [g for g in groups if g.id == name] or [g for g in groups if g.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"sweep {name!r} is ambiguous: " + ", ".join(g.id for g in found))
    raise UserError(f"there is no sweep {name!r}; gpu-engine sweep lists them")


def read(found: Group, figures: Callable[[Run], Figures] = figures_of) -> list[One]:
    """The members that are still there, with their states and all their figures. `figures`: reads
    those of a run."""
    members = list[One]()
    for run, member in found.members:
        if not run.path.is_dir():  # it was removed since they were found
            continue
        state, why = run.state(), None
        if state.state != "completed" and not state.live:
            why = state.cause.line if state.cause is not None else state.reason
        did = figures(run)
        members.append(One(
            run.id, member.index, member.values, member.repeat, clean(state.name), state.state,
            None if why is None else clean(why), state.took(time.time()), did.steps, did.values,
            did.samples_per_s, did.exact, state.rungs, _by_hand(state)))
    return members


def without_figures(found: Group) -> list[One]:
    """The members with their states; no event is read."""
    return read(found, lambda run: Figures())


def default_by(found: Group, members: Iterable[One]) -> By:
    """What decides unless a person says otherwise: the value of run.best, of train.best, or the
    loss."""
    asked = None
    with contextlib.suppress(UserError):
        spec = from_dict(attempts.read_spec(found.members[0][0]))
        asked = spec.run.best or spec.train.best
    return compared_by(asked, names(members))


def outcome(found: Group) -> str:
    """How the sweep has done, in one line: "5 of 6 done, 1 failed; best loss 3.094: run 3f2a"."""
    members = read(found)
    best = best_text(members, default_by(found, members))
    return clean("; ".join(filter(None, (found.summary(members), best))))


# --- stopping, and trying again ------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Done:
    """What was done to a sweep's members."""

    runs: tuple[Run, ...]
    trouble: tuple[str, ...]
    """What went wrong with others, for people."""
    search: str = ""
    """What became of the search that it is, for people; "": nothing."""


def stop(found: Group, *, now: bool = False) -> Done:
    """Take the waiting members out of the line, and then ask those that run to stop; `now`: kill
    their ranks. Members that have ended are left alone."""
    from gpu_engine.places import verbs

    with contextlib.suppress(OSError):  # empty: those that rest at a rung stay there
        lock = waiting.sweep_lock(paths.queue_folder(), found.id)
        overwrite_inside(lock.parent, lock.name, "")
    asked = kept.stop(paths.queue_folder(), found.id)
    with contextlib.suppress(UserError):  # one may have begun since they were found
        found = find(found.id)
    live = [run for run, _ in found.members if run.state().live]
    waits = [run for run in live if waiting.read(run.path) is not None]
    done, trouble = list[Run](), list[str]()
    # Waiting ones first, the last of the line before the others: none of them starts on a device
    # that another has just left.
    for run in [*reversed(waits), *(run for run in live if run not in waits)]:
        try:
            verbs.stop(run, now=now)
            done.append(run)
        except (UserError, OSError) as err:
            if run.state().live:
                trouble.append(str(err))
    return Done(tuple(done), tuple(trouble), "the search asks for no more" if asked else "")


def retry(found: Group, *, stopped: bool = False) -> Done:
    """Put the members that have failed or are lost into the line for another attempt, which goes on
    from their last checkpoint if they have one; `stopped`: those too that somebody has stopped, and
    a search that was stopped asks for more again. Raises UserError if there is none."""
    from gpu_engine.queue import serve

    queue = paths.queue_folder()
    states = {run: run.state() for run, _ in found.members}
    by_hand = [run for run, state in states.items() if _by_hand(state)]
    again = [run for run, state in states.items() if state.state in ("failed", "lost")] \
        + by_hand * stopped
    asked = stopped and kept.go_on(queue, found.id)
    if not again and not asked:
        raise UserError(f"no run of sweep {found.id} has failed" + (
            " or was stopped" if stopped else
            f"; with --stopped {units.counted(len(by_hand), 'run')} more" if by_hand else
            "; with --stopped the search goes on" if kept.is_stopped(queue, found.id) else ""))
    done = _again([(run, m) for run, m in found.members if run in again])
    if asked:
        lock, until = waiting.sweep_lock(queue, found.id), time.monotonic() + _ENDS
        while locked(lock) and time.monotonic() < until:  # that which was stopped a moment ago
            time.sleep(0.1)
        with telling(f"the process of sweep {found.id} can't be started"):
            serve.start_sweep(queue, found.id)
    if done.runs:
        serve.ensure()
    return replace(done, search="the search asks for more again") if asked else done


def _by_hand(state: State) -> bool:
    return state.state == "stopped" and state.loses is None


def go_on(found: Group, unable: set[str], still: dict[str, Followed], *, whole: bool) -> bool:
    """With run.halving: put those into the line that go on from the rung at which they rest.
    Returns whether more may. `unable`: adds the ids of those that can't, which are passed over.
    `still`: takes up members that go on elsewhere, see there. `whole`: no more members are to come.
    Raises UserError if its spec can't be read."""
    from gpu_engine.places.verbs import Followed
    from gpu_engine.queue import serve

    first = next((run for run, _ in found.members if trust.started_here(run.path)), None)
    spec = from_dict(attempts.read_spec(first)) if first is not None else RunSpec()
    factor, asha = spec.run.halving, spec.run.asha
    if factor is None or not (whole or asha):
        return False
    ours = [(run, m) for run, m in found.members
            if trust.started_here(run.path) and run.id not in unable]
    by = compared_by(spec.run.best or spec.train.best, ())
    states = {run.id: run.state() for run, _ in ours}
    for run, _ in ours:
        still.setdefault(run.id, Followed(run))(states[run.id])
    of = found.members[0][1].of
    next_up = due(states, of, factor, largest=by.largest, asha=True) if asha else []
    if whole and not next_up:  # with asha: some have failed, so fewer got there than were to
        next_up = due(states, of, factor, largest=by.largest)
    done = _again([(run, m) for run, m in ours if run.id in next_up])
    if asha and done.runs:
        with contextlib.suppress(UserError):  # one was stopped meanwhile
            serve.put_ahead(done.runs, found.id)
    for text in done.trouble:
        log.error("%s", text)
    unable |= {*next_up} - {run.id for run in done.runs}
    return bool(next_up) or any(state.live for state in states.values())


def _again(members: Iterable[tuple[Run, Member]]) -> Done:
    """Put members that have ended into the line for another attempt."""
    from pathlib import Path

    from gpu_engine.code.submitted import Kept
    from gpu_engine.places.verbs import meant_by
    from gpu_engine.queue.submit import Submission, When
    from gpu_engine.queue.submit import submit as wait

    done, trouble = list[Run](), list[str]()
    inventory = None
    for run, member in members:
        try:
            spec = from_dict(attempts.read_spec(run))
            if member.pick is not None:  # it became devices of one machine when the run started
                there = [str(e) if e.partition else e.host
                         for e in parse_all(spec.devices.hosts or ())] or None
                spec = replace(spec, devices=replace(
                    spec.devices, ids=None, pick=member.pick, free_gib=member.free_gib,
                    hosts=there))
            inventory = inventory or meant_by(spec).devices(spec)
            wait(spec, When(), Submission(inventory, Kept(), Path(run.cwd())), member=member,
                 again=run, begin=False)
            done.append(run)
        except (UserError, OSError) as err:
            trouble.append(f"run {run.id} is not tried again: {err}")
    return Done(tuple(done), tuple(trouble))
