"""Who hangs: in which collective operation each rank waits, who did not come to it, and where that
one is. Pure: made from what the ranks themselves have said (`events.schema.Stands`).

Only a rank that neither works nor waits is said to stand still. One that works may validate,
compile or save for as long as it likes, or loop for ever: nobody can tell these apart from outside,
so its line of code is named and nothing more is claimed. `find_alarm` is what everybody asks who
tells a person, or marks a run: while a rank works, the others may be waiting for it, in ways that
nothing records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.events.schema import DEBUGGER, SLEEP, WAITING, Collective
from gpu_engine.runs import disk_room

if TYPE_CHECKING:
    from gpu_engine.events.rank_view import RankView

SILENT = 10.0
"""Seconds without an event after which a rank is called silent. A heartbeat comes once a second,
and later by seconds on a machine with ten times as many processes as cores."""
_ORDER = {name: i for i, name in enumerate(
    ("init", "data", "running", "forward", "backward", "optimizer", "eval", "checkpoint"))}
_WITHIN = ("forward", "backward", "optimizer")
"""Phases within a step."""
_STOOD = 600.0
"""Seconds: after a longer standstill than half of it, another one is told after this time."""
SOON = 20.0
"""Seconds after which a rank that has said where it is counts as waiting. It says so after ten."""
_LONG = 30.0
"""The same for one that has said nothing, though it lives."""
_BRIEF = 5.0
"""Seconds that a rank must have been in an operation when it said so, if it works as well: one that
goes from one to the next, as in an evaluation, waits in none. NCCL waits at full speed."""
_NAP = 90.0
"""Seconds for which `time.sleep` may keep a rank: requests are limited by the minute."""
_EVERYBODY = "0"
"""The name of the group of all ranks."""
_ALIKE = ("all_reduce", "broadcast")
"""The operations to which all ranks bring the same size."""
_IN_LIBRARY = (
    ("torch/utils/data/", "waiting for its DataLoader"), ("torch/_dynamo/", "compiling"),
    ("torch/_inductor/", "compiling"), ("torch/serialization.py", "saving or loading"),
    ("torch/distributed/checkpoint/", "saving or loading"))
"""What a rank does in calls of a library, by the path of the innermost that is known."""


_PLURALS = {"is": "are", "has": "have"}


@dataclass(frozen=True, slots=True)
class Hang:
    """Why ranks make no step."""

    text: str
    """One sentence."""
    rank: int
    """The one to look at first."""
    works: bool
    """Whether any rank works: then it may be a long validation as well, and is no alarm."""
    silent: bool = False
    """Whether it is told only because nothing comes from it any more: its disk may be full."""
    where: tuple[str, ...] = ()
    """A line for each rank that has said where it is: "rank 1: train.py:40 in main, works"."""


def find_hang(views: Iterable[RankView], now: float, *, at_least: float = SOON,
              unheard: Collection[int] = ()) -> Hang | None:
    """Why ranks have made no step for `at_least` seconds, and for five of their own steps; None if
    all go on. Those that nothing is heard of (`unheard`) are left out. `now`: Unix seconds."""
    views = [v for v in views if v.rank not in unheard]
    hang = _find(views, now, at_least, whole=not unheard)
    # The others may be waiting for it where nothing says so: for a message, a file, a key.
    return hang and replace(hang, works=any(_works(v, now) for v in views if v.beat is not None))


def find_alarm(views: Iterable[RankView], now: float, *, at_least: float = SOON,
               unheard: Collection[int] = ()) -> Hang | None:
    """The same where no rank works, so that nobody can be waiting for one that does."""
    hang = find_hang(views, now, at_least=at_least, unheard=unheard)
    return None if hang is None or hang.works else hang


def alarm_of(views: Iterable[RankView], run: Path, now: float, unheard: Collection[int]
             ) -> str | None:
    """`find_alarm` in words, for a list; of ranks that are silent, that the disk of the folder
    `run` is full, if it is."""
    hang = find_alarm(views, now, unheard=unheard)
    if hang is None:
        return None
    return (disk_room.silence(run) if hang.silent else None) or hang.text


def _find(views: Sequence[RankView], now: float, at_least: float, *, whole: bool) -> Hang | None:
    """What `find_hang` finds; its `works` is worked out there. `whole`: see `behind`."""
    still = stalled(views, now, at_least=at_least)
    if not any(s.still > _LONG or s.is_silent or _of(views, s.rank).stands is not None
               for s in still):
        still = []
    # Before the first step data may be prepared for any time, but not behind a collective.
    early = [v for v in views if not v.step_times and not v.over and v.beat is not None
             and (one := _waits(v)) is not None and now - one.began > at_least]
    if not still and not early:
        return _not_joined(views, now, at_least)
    told = behind(views, now, at_least=at_least, whole=whole)
    if told is None and any(v.over for v in views):  # others may upload, wait for a job, ...
        still = [s for s in still if s.phase in _WITHIN]
    return told or (_without_operations(views, still, now) if still else None)


def behind(views: Sequence[RankView], now: float, failed: Collection[int] = (), *,
           at_least: float = 0.0, whole: bool = True) -> Hang | None:
    """Who did not come to the operation in which others wait, or in which they have `failed` as the
    connection broke or time was up; None if none has waited for `at_least` seconds. `now`: Unix
    seconds. `whole`: whether the views are of all ranks; of others nobody knows if they came."""
    waiting = {v.rank: one for v in views if (one := _waits(v, v.rank in failed)) is not None}
    if not waiting or now - min(one.began for one in waiting.values()) < at_least:
        return None
    where = tuple(_line(v, now) for v in views if v.stands is not None)
    meetings: dict[tuple[str, int, bool], dict[int, Collective]] = defaultdict(dict)
    for rank, one in sorted(waiting.items(), key=lambda item: item[1].began):
        meetings[one.group, one.number, one.point][rank] = one
    if any(len(set(map(_sort, same.values()))) > 1 for same in meetings.values()):
        return _apart(views, waiting, where)
    for same in meetings.values():
        one = next(iter(same.values()))
        # One that waits itself is late only because of another, or each waits for the other.
        absent = [v for v in views if v.rank not in waiting and _is_missed(v, one)]
        if absent:
            return _missed(_wait_in(views, same, now, [v.rank for v in absent]), absent, now,
                           where)
    if len(meetings) > 1:
        return _apart(views, waiting, where)
    (same,) = meetings.values()
    one = next(iter(same.values()))
    known = whole and one.group == _EVERYBODY and not one.point \
        and all(v.rank in same for v in views if v.process is None)
    why = ", and all have come: look at the network and the GPUs (gpu-engine check)"
    return Hang(_wait_in(views, same, now) + why * known, next(iter(same)), False, where=where)


def _apart(views: Sequence[RankView], waiting: Mapping[int, Collective], where: tuple[str, ...],
           ) -> Hang:
    """Ranks wait in different operations, and none is known to be late."""
    sides: dict[object, list[int]] = defaultdict(list)
    for rank, one in waiting.items():
        sides[one.group, one.number, one.point, _sort(one)].append(rank)
    fewest_first = sorted(sides.values(), key=len)
    text = ", ".join(f"{_ranks(side)} in {_name(waiting[side[0]])} at {_at(_of(views, side[0]))}"
                     for side in fewest_first)
    return Hang(f"ranks wait in different operations: {text}. Is one of them under "
                '"if rank == 0:", in another order on some ranks, or skipped where an exception '
                "was caught?", fewest_first[0][0], False, where=where)


def _missed(text: str, absent: list[RankView], now: float, where: tuple[str, ...] = ()) -> Hang:
    """`text` says who waits for those that are `absent`; and what these do."""
    absent.sort(key=lambda v: _suspicion(v, now))
    told = "; ".join(f"rank {v.rank} {does(v, now)}{_and_where(v)}" for v in absent[:3])
    more = f"; and {len(absent) - 3} more" if len(absent) > 3 else ""
    first = absent[0]
    return Hang(f"{text}; {told}{more}", first.rank, False, is_silent(first, now), where=where)


def _not_joined(views: Sequence[RankView], now: float, at_least: float) -> Hang | None:
    """Who waits in init_process_group for a rank that is elsewhere; None if none waits there."""
    waiting = {v.rank: v.stands for v in views if v.stands is not None and not v.step_times
               and v.outcome is None and not v.stands.works
               and any(line.endswith(" in init_process_group") for line in v.stands.stack)}
    absent = [v for v in views if v.rank not in waiting and not v.step_times]
    since = min((stands.since for stands in waiting.values()), default=now)
    if not absent or now - since <= at_least:
        return None
    return _missed(f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for "
                   f"{_ranks([v.rank for v in absent])} in init_process_group at "
                   f"{_at(_of(views, min(waiting)))}{_so_long(now - since)}", absent, now)


def _wait_in(views: Sequence[RankView], same: Mapping[int, Collective], now: float,
             absent: Collection[int] = ()) -> str:
    first, one = next(iter(same.items()))  # it came first
    whom = f" for {_ranks(absent)}" if absent else ""
    return f"{_ranks(same)} {'waits' if len(same) == 1 else 'wait'}{whom} in {_name(one)} at " \
        f"{_at(_of(views, first))}{_so_long(now - one.began)}"


def _so_long(seconds: float) -> str:
    return f" for {units.span(seconds)}" if seconds >= 1 else ""  # not "for 0 s"


def another_size(views: Iterable[RankView], aborted: Mapping[int, str | None],
                 shares: Mapping[int, float] = {}) -> str:
    """Which operations ranks were in when gloo ended the processes of those `aborted`, as they got
    more bytes than they had asked for: that may be the odd ones, or those that were right. Of those
    only the line that their stacks tell is known: "/here/train.py:40 in main". `shares`: what
    they had asked for, as a share of what they got."""
    sides: dict[str, list[int]] = defaultdict(list)
    places: dict[str, str] = {}
    sizes: dict[str, str] = {}
    lines = dict(aborted)
    for view in views:
        if view.rank in aborted or view.process is not None:
            continue
        if (one := _waits(view, view.error is not None)) is None:  # ended before it could say so
            lines[view.rank] = None
            continue
        what = f"{_name(one)} at {_at(view)}"
        sides[what].append(view.rank)
        places[what], sizes[what] = _at(view), one.size
    for rank, line in lines.items():
        what = "one that is not known, as it was ended before it could say" if line is None \
            else f"one at {line}"
        there = [known for known, place in places.items() if what.endswith(f"/{place}")]
        if len(there) == len(places) == len(lines) == 1:  # this one has the other size
            size = _part_of(sizes[there[0]], shares.get(rank))
            sides[f"{what} ({size})"].append(rank)
        else:
            sides[there[0] if len(there) == 1 else what].append(rank)
    told = ", ".join(f"{_ranks(ranks)} in {what}"
                     for what, ranks in sorted(sides.items(), key=lambda side: len(side[1])))
    return f'collective operations of different sizes met: {told}. Is one of them under ' \
        '"if rank == …:"?'


def _part_of(size: str, share: float | None) -> str:
    """Another size than "1000 float", of which it is a `share`: "about 900 float"."""
    number, _, kind = size.partition(" ")
    known = share is not None and number.isdecimal() and "," not in kind
    return f"about {int(number) * (share or 0.0):.0f} {kind}" if known else "another size"


def _without_operations(views: Sequence[RankView], still: Sequence[Standstill], now: float,
                        ) -> Hang:
    """No collective operation is known: who stands still, and where."""
    told = [v for s in still if (v := _of(views, s.rank)).stands is not None or v.quiet is not None]
    if not told or (still[0].is_silent and _of(views, still[0].rank).quiet is None):
        return Hang(describe(still), still[0].rank, False, silent=still[0].is_silent)
    told.sort(key=lambda v: _suspicion(v, now))
    longest = units.clock(max(s.still for s in still))
    by_place: dict[str, list[int]] = defaultdict(list)
    for view in told:
        by_place[f"{does(view, now)}{_and_where(view)}"].append(view.rank)
    text = "; ".join(f"{_ranks(ranks)} {what if len(ranks) == 1 else _plural(what)}"
                     for what, ranks in list(by_place.items())[:3])
    return Hang(f"no step for {longest}: {text}", told[0].rank, False,
                where=tuple(_line(v, now) for v in told))


# --- who stands still --------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Standstill:
    """Where a rank stands still, and for how long."""

    rank: int
    step: int | None
    phase: str | None
    still: float
    """Seconds since its step or phase last changed."""
    silent: float

    @property
    def is_silent(self) -> bool:
        return self.silent > SILENT

    def __str__(self) -> str:
        # A script's phase is "running" in everything but backward and optimizer: it says nothing.
        where = f" in {self.phase}" if self.phase not in (None, "running") else ""
        at = f" after step {self.step:,}" if self.step is not None else ""
        text = f"rank {self.rank} has stalled{where} for {units.clock(self.still)}{at}"
        if self.is_silent:
            text += f", without a sign of life for {units.clock(self.silent)}"
        return text


def furthest_behind(ranks: Sequence[Standstill]) -> Standstill:
    """The rank that is furthest behind. `ranks` must not be empty."""
    return min(ranks, key=lambda s: (not s.is_silent, -1 if s.step is None else s.step,
                                     _ORDER.get(s.phase or "", 0), -s.still))


def describe(ranks: Sequence[Standstill]) -> str:
    """One line that says which rank is furthest behind, and where the others stand."""
    first = furthest_behind(ranks)
    others = [s for s in ranks if s is not first]
    if not others:
        return str(first)
    phases: dict[str, list[int]] = {}
    for standing in others:
        phases.setdefault(standing.phase or "?", []).append(standing.rank)
    where = ", ".join(
        f"{f'{len(ranks)} others' if len(ranks) > 8 else _ranks(ranks)} in {phase}"
        for phase, ranks in phases.items())
    return f"{first}; {where}"


def stalled(views: Iterable[RankView], now: float, *, at_least: float = 30.0
            ) -> list[Standstill]:
    """The ranks that stand still for unusually long, the one furthest behind first.

    Unusual is longer than `at_least` seconds and than five of the rank's own steps. Ranks before
    their first step are left out: they may prepare data and compile kernels for any time. `now` is
    in Unix seconds.
    """
    found = []
    for view in views:
        if view.over or view.beat is None or not view.step_times:
            continue
        standing = Standstill(view.rank, view.step, view.phase, max(now - _since_when(view), 0.0),
                              max(now - view.beat, 0.0))
        longest = max(standing.still, standing.silent)
        # The pace is worked out only for the few that may stand still.
        if longest > at_least and longest > _usual(view):
            found.append(standing)
    if not found:
        return []
    first = furthest_behind(found)
    return [first, *(s for s in found if s is not first)]


# --- of one rank ------------------------------------------------------------------------------

def _since_when(view: RankView) -> float:
    """When its step, its phase or what it tells of it last changed, Unix seconds."""
    steps = view.step_times
    return max(view.phase_since or 0.0, view.progressed or 0.0, steps[-1][0] if steps else 0.0)


def _usual(view: RankView) -> float:
    """Seconds without a step that are usual of this rank, which has made one."""
    if view.steps_per_s:
        # One that has stood still and gone on by itself may do so again, for somewhat longer.
        return max(5 / view.steps_per_s, min(2 * view.stood, _STOOD))
    # Of a single step it is known that it took no longer than the rank has lived.
    return 2 * (view.step_times[0][0] - view.began) if view.began is not None else 0.0


def _of(views: Iterable[RankView], rank: int) -> RankView:
    return next(v for v in views if v.rank == rank)


def _begun(view: RankView) -> Mapping[int, Collective]:
    return (view.stands and view.stands.collectives) or {}


def _waits(view: RankView, failed: bool = False) -> Collective | None:
    """The operation that it waits in: of those that have not ended, the one begun first. The one in
    which it has `failed` may count as ended."""
    if view.over and not failed:
        return None
    begun = list(_begun(view).values())
    one = next((one for one in begun if not one.done), begun[-1] if failed and begun else None)
    stands = view.stands
    if one and stands and stands.works and not failed and stands.t - one.began < _BRIEF:
        return None
    return one


def _is_missed(view: RankView, one: Collective) -> bool:
    """Whether it has not begun the operation that others are in, though it belongs there."""
    if view.process is not None:
        return False
    numbers = [c.number for c in _begun(view).values()
               if c.group == one.group and c.point == one.point]
    return one.number > max(numbers) if numbers else one.group == _EVERYBODY and not one.point


def is_silent(view: RankView, now: float) -> bool:
    """Whether it was suspended, or native code keeps its interpreter, or its disk is full. `now`:
    Unix seconds."""
    return _says_nothing(view, now) and not view.over and view.quiet != "works"


def _says_nothing(view: RankView, now: float) -> bool:
    return view.beat is not None and now - view.beat > SILENT


def _sort(one: Collective) -> tuple[str, str]:
    """What has to be the same on all ranks."""
    # The root of a gather or scatter rightly brings another size.
    return one.operation, one.size if one.operation in _ALIKE else ""


def _works(view: RankView, now: float) -> bool:
    """Whether it works, or goes on with its steps, or will by itself or by its person."""
    if view.over or view.error is not None or is_silent(view, now):
        return False
    stands = view.stands
    if _says_nothing(view, now):  # but its process works
        return True
    if stands is None:
        return now - _since_when(view) < _LONG
    if stands.waits == DEBUGGER:
        return True
    if not stands.works:
        return stands.waits == SLEEP and now - stands.since < _NAP
    return _waits(view) is None and not _for_others(view)


def _for_others(view: RankView) -> bool:
    """Whether it is a rank of the engine's own that waits for others, looking again and again."""
    return (view.detail or "").startswith(WAITING)


def _suspicion(view: RankView, now: float) -> tuple[int, int]:
    """Sorts ranks by what they do, first the one to look at first: one that waits is late only
    because of another."""
    stands = view.stands
    waits = _waits(view) is not None or _for_others(view) or (
        stands is not None and not stands.works and stands.waits not in (None, SLEEP))
    return 2 if waits else 1 if _works(view, now) else 0, view.rank


def does(view: RankView, now: float) -> str:
    """What one rank does, without its name: "stands still", "has ended after step 29"."""
    stands = view.stands
    if view.error is not None or view.outcome == "failed":
        return "has failed"
    if view.over:
        # Before Python's own end, as by os._exit, or by exec.
        how = "ended" if view.ended and view.exit is None else f"exited with {view.exit or 0}"
        return f"has {how} after step {view.at_step or 0:,}"
    if view.beat is None or _says_nothing(view, now):
        so_long = "" if view.beat is None else _so_long(now - view.beat)
        words = {"works": "works, but says nothing", "suspended": "is suspended"}
        return words.get(view.quiet or "", "gives no sign of life") + so_long
    if stands is None:
        return f"has got to step {view.at_step or 0:,}"
    one = _waits(view)
    if one is not None:
        return f"waits in {_name(one)}"
    if _for_others(view):
        return f"is {view.detail}"
    if stands.waits is not None and not stands.works:
        return f"waits in {stands.waits}"
    if stands.waits not in (None, SLEEP, DEBUGGER):
        # It was at work before it came there, which its last looks still reach back to.
        return f"has come to {stands.waits}"
    library = next((words for line in stands.stack for path, words in _IN_LIBRARY
                    if path in line), None)
    if stands.worker is not None and library is not None:
        library += f", whose worker is at {stands.worker}"
    return ("works" if stands.works else "stands still") + (f", {library}," if library else "")


def _plural(what: str) -> str:
    """What `does` says of one rank, of several."""
    verb, _, rest = what.partition(" ")
    return f"{_PLURALS.get(verb, verb[:-1])} {rest}"


def _at(view: RankView) -> str:
    stands = view.stands
    return (stands and (stands.place or next(iter(stands.stack), None))) or "an unknown line"


def _line(view: RankView, now: float) -> str:
    """Where one rank is and what it does, as a line of its own."""
    words = does(view, now).removesuffix(",")
    return f"rank {view.rank} {words}" if _for_others(view) \
        else f"rank {view.rank}: {_at(view)}, {words}"


def _and_where(view: RankView) -> str:
    if view.stands is None or view.error is not None or view.over or _for_others(view):
        return ""  # where the engine waits is no line of the person's
    return f" at {_at(view)}"


def _name(one: Collective) -> str:
    size = f" ({one.size})" if one.size else ""
    group = "" if one.group == _EVERYBODY else f" of group {one.group}"
    return f"{one.operation} #{one.number}{group}{size}"


def _ranks(ranks: Collection[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, sorted(ranks)))
