"""The sweeps among the runs on disk, and the members of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.runs import attempts
from gpu_engine.runs import sweep as record
from gpu_engine.runs.folder import Run, State, each_run
from gpu_engine.runs.sweep import Member
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import parse_best
from gpu_engine.sweep.figures import Figures, FiguresOf
from gpu_engine.sweep.table import By, One, names
from gpu_engine.sweep.track import EVAL


@dataclass(frozen=True, slots=True)
class Group:
    """A sweep: its members that are on disk, in the order of the grid."""

    id: str
    name: str
    begun: float
    """When it was submitted, Unix seconds."""
    of: int
    """How many members were to be submitted."""
    members: tuple[tuple[Run, Member], ...]

    @property
    def keys(self) -> list[str]:
        """The keys that vary."""
        return list(self.members[0][1].values)


def all_groups() -> list[Group]:
    """All sweeps, the newest first."""
    found: dict[str, list[tuple[Run, Member]]] = {}
    for run in each_run():
        member = record.read(run.path)
        if member is not None:
            found.setdefault(member.sweep, []).append((run, member))
    groups = [group(pairs) for pairs in found.values()]
    return sorted(groups, key=lambda g: -g.begun)


def group(pairs: Iterable[tuple[Run, Member]]) -> Group:
    """The sweep of these members, of which there is at least one."""
    ordered = sorted(pairs, key=lambda pair: (pair[1].index, pair[0].id))
    keys = dict.fromkeys(key for _, member in ordered for key in member.values)
    # A member whose record was changed by hand lacks some: all lines have the same columns.
    members = tuple((run, replace(m, values={k: m.values.get(k, "") for k in keys}))
                    for run, m in ordered)
    first = ordered[0][1]
    return Group(first.sweep, clean(first.name), first.begun, first.of, members)


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


def without_figures(found: Group) -> list[One]:
    """The members with their states; no event is read."""
    return [_one(run, member, run.state(), Figures()) for run, member in found.members]


def read(found: Group, figures: FiguresOf | None = None) -> list[One]:
    """The members that are still there, with their states and all their figures. `figures`: what
    was read of them before."""
    figures = figures or FiguresOf()
    out = []
    for run, member in found.members:
        state = run.state()
        if run.path.is_dir():  # it may have been removed since they were found
            out.append(_one(run, member, state, figures.read(run, state)))
    return out


def _one(run: Run, member: Member, state: State, figures: Figures) -> One:
    why = None
    if state.state not in ("completed", "stopped") and not state.live:
        why = state.cause.line if state.cause is not None else state.reason
    return One(run.id, member.index, member.values, member.repeat, clean(state.name), state.state,
               None if why is None else clean(why), state.took(time.time()), figures.steps,
               figures.values, figures.samples_per_s, figures.exact)


def default_by(found: Group, members: Iterable[One]) -> By:
    """What decides unless a person says otherwise: the value of train.best, or the loss."""
    with contextlib.suppress(UserError):
        best = parse_best(from_dict(attempts.read_spec(found.members[0][0])).train.best)
        if best is not None and EVAL + best[0] in names(members):
            return By(EVAL + best[0], best[1])
    return By()
