"""The runs in the list: what is known of one, the columns that show it, and its row of text; a
sweep as one row. Pure.

The columns are those of `COLUMNS`, and any key of the spec.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpu_engine.common import table, units
from gpu_engine.common.clean import clean
from gpu_engine.common.table import GAP, Column, finite
from gpu_engine.runs.query import Asked
from gpu_engine.spec import modes
from gpu_panel.charts.braille import bar, sparkline
from gpu_panel.common.rows import Line, Made, Part, Row, cells, fit
from gpu_panel.common.table import head
from gpu_panel.common.table import line as table_line
from gpu_panel.run.states import glyph, tone

if TYPE_CHECKING:
    from gpu_engine.runs.digest import By
    from gpu_engine.runs.folder import Run
    from gpu_engine.runs.state import StateName
    from gpu_engine.runs.sweep import Member


@dataclass(frozen=True, slots=True)
class RunLine:
    """What the list knows about one run."""

    run: Run
    name: str
    """The name that a person gave it, else the one that it was started with."""
    mode: str
    world: int
    state: str
    live: bool
    created: float
    ended: float | None = None
    reason: str | None = None
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    history: tuple[float, ...] = ()
    samples_per_s: float | None = None
    """Of a run that has ended: over its last steps."""
    steps_per_s: float | None = None
    seconds_left: float | None = None
    started: float | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """(key of the device's row, rank) of a live run."""
    pids: tuple[tuple[int, int], ...] = ()
    """(pid, rank) of a live run's ranks on this machine."""
    still: str | None = None
    waits: bool = False
    """Whether it is in this machine's queue; then its reason says what it waits for."""
    job: bool = False
    """Whether it is a job of Slurm that can be asked about: its reason is no bad news."""
    warnings: tuple[str, ...] = ()
    odd: str | None = None
    preset: str = ""
    task: str = ""
    """The task's class as module:Class, or the command."""
    tags: tuple[str, ...] = ()
    verdict: str | None = None
    """"keep" or "discard"; None: nobody has said."""
    note: str = ""
    seconds: float | None = None
    sweep: Member | None = None
    best: float | None = None
    """Its best value; while it lives, of a loss that of its first rank."""
    by: By | None = None
    """Of which value that is."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The keys of its spec, and their values as text."""
    read: bool = True
    """Whether its events have been read; before, its figures are not known."""

    id: str = field(init=False, compare=False)
    """The run's id. Kept, as it is asked for thousands of times a second among a thousand runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.run.id)

    @property
    def told(self) -> str:
        """What is to be known of a run that is well otherwise: its first warning, and how many
        there are more; "" for nothing."""
        if not self.warnings or not (self.live or self.state == "completed"):
            return ""
        first, *more = self.warnings
        return clean(first) + (f" (and {len(more)} more)" if more else "")

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        return Asked({"id": (self.id,), "name": (self.name,), "preset": (self.preset,),
                      "task": (self.task,), "mode": (self.mode,), "state": (self.state,),
                      "tag": self.tags, "note": (self.note,),
                      "verdict": (self.verdict or "",)}, self.settings)


def ranks_by_pid(runs: Iterable[RunLine]) -> dict[int, tuple[RunLine, int]]:
    """The processes that are ranks of live runs: pid → run and rank."""
    return {pid: (run, rank) for run in runs for pid, rank in run.pids}


@dataclass(frozen=True, slots=True)
class Pointed:
    """A run, a sweep, or the marked runs."""

    lines: tuple[RunLine, ...]
    sweep: str | None = None
    """Its id; None: these runs are of none, or stand for themselves."""

    @property
    def key(self) -> object:
        """The same for the same runs, whatever has become of them."""
        return self.sweep or frozenset(line.run.path for line in self.lines)


# --- columns ----------------------------------------------------------------------------------

_STATES: tuple[StateName, ...] = ("running", "starting", "stopping", "queued", "failed", "lost",
                                  "unreadable", "stopped", "completed")
"""In this order runs are sorted by their state: first what needs somebody."""
_WAITS = "…"
"""Stands for a figure that is still being read."""

_HEAD, _WIDEST = 16, 24
"""Cells of the head and of a value of a column that stands for a key."""
_NAME = 40
"""The most cells of a name."""
_VERDICTS = {"keep": ("★", "accent"), "discard": ("×", "dim")}

Value = float | str | tuple[bool, float, str]


def mode_text(line: RunLine) -> str:
    """ "DDP×4"; "" if its plan can't be read."""
    mode = modes.find(line.mode)
    name = mode.short if mode else clean(line.mode, 12)
    return name + (f"×{line.world}" if line.world > 1 else "")


def _steps(line: RunLine, width: int) -> str:
    """How far a run has got: "1,240 of 5,862" or "21 %"; where its end is not known, as that of a
    person's own command: "1,240" or "1.2k"."""
    if line.step is None:
        return "" if line.read else _WAITS
    if width < 10:
        if line.total:
            return units.share(line.step / line.total)
        text = units.count(line.step)
        return text if len(text) <= width else units.short(line.step)
    total = f"{line.total:,}" if line.total else ""
    text = f"{line.step:,}" + (f" of {total}" if total else "")
    return text if len(text) <= width else f"{line.step:,}/{total}"


def _words(name: str, of: Callable[[RunLine], str], most: int, style: str = "",
           *gives: tuple[int, int]) -> Column[RunLine]:
    """A column of words, which sort as such."""
    return Column(name, name, lambda r: clean(of(r)), lambda r: style, width=len(name) + 1,
                  most=most, gives=gives, order=lambda r: of(r).lower() or None)


def _figure(name: str, title: str, width: int, of: Callable[[RunLine], str],
            order: Callable[[RunLine], Value | None], *gives: tuple[int, int],
            **more: Any) -> Column[RunLine]:
    return Column(name, title, of, width=width, most=0, gives=gives, order=order, **{
        "falls": True, "right": True, **more})


def _state(line: RunLine, width: int) -> Line:
    """The state, and what a person has said of the run."""
    style = "warn" if line.state == "completed" and line.warnings else tone(line.state)
    mark = _VERDICTS.get(line.verdict or "", ("", ""))
    return (glyph(line.state), style), mark, (f" {line.state}" * (width > 2), style)


def _name(line: RunLine) -> str:
    """Of a member only what it differs by, as it stands below its sweep."""
    name = clean(line.name)
    if line.sweep is not None:
        name = "  " + name.removeprefix(f"{line.sweep.name} ")
    return name + " !" * bool(line.told)


def _name_within(line: RunLine, width: int) -> Line:
    name = _name(line)
    if not line.told:
        return ((fit(name, width), ""),)
    return (fit(name[:-2], min(width, cells(name)) - 2), ""), (" !", "warn")


def called(by: By) -> str:
    """The name of a value, as a column has room for it."""
    return clean(by.name.removeprefix("eval:"), 12)


def _best(line: RunLine, width: int) -> str:
    """With the name of its value, if there is room for it."""
    if line.best is None or line.by is None:
        return ""
    named = f"{units.loss(line.best)} {called(line.by)}"
    return named if cells(named) <= width else units.loss(line.best)


# Where there is too little room, the least important gets narrower or goes first.
COLUMNS: dict[str, Column[RunLine]] = {c.name: c for c in (
    Column("state", "state", lambda r: f"{glyph(r.state)} {r.state}", width=12, most=0,
           within=_state,
           order=lambda r: _STATES.index(r.state) if r.state in _STATES else len(_STATES),
           gives=((14, 2),)),
    _words("run", lambda r: r.id, 24, "strong"),
    Column("name", "name", _name, width=5, most=_NAME, within=_name_within,
           gives=((10, 22), (17, 14), (18, 10)), order=lambda r: r.name.lower() or None),
    _words("preset", lambda r: r.preset, 22, "", (11, 0)),
    _words("task", lambda r: r.task.rpartition(":")[2] if " " not in r.task else r.task, 30, "",
           (2, 14), (7, 0)),
    _words("mode", mode_text, 14, "dim", (15, 0)),
    _words("tags", lambda r: " ".join(r.tags), 20, "accent", (5, 8), (13, 0)),
    _words("verdict", lambda r: r.verdict or "", 7, "strong", (21, 0)),
    _figure("step", "step", 20, lambda r: _steps(r, 20), lambda r: r.step, (3, 14), (8, 5), (22, 0),
            within=_steps),
    _figure("loss", "loss", 8, lambda r: units.loss(r.loss) if r.loss is not None else
            _WAITS * (not r.read), lambda r: finite(r.loss), (23, 0), falls=False),
    Column("best", "best", lambda r: "" if r.best is None else units.loss(r.best), width=8, most=0,
           gives=((8, 8), (10, 0)), within=_best,
           order=lambda r: None if r.best is None or r.by is None else (
               called(r.by), -r.best if r.by.largest else r.best)),
    Column[RunLine]("curve", "curve", lambda r: "", width=10, most=0, gives=((16, 8), (20, 0)),
           within=lambda r, w: sparkline(r.history, w)),
    _figure("speed", "examples/s", 12, lambda r: "" if r.samples_per_s is None
            and r.steps_per_s is None else units.pace_cell(r.samples_per_s, r.steps_per_s),
            lambda r: finite(r.samples_per_s), (4, 0)),
    _figure("time", "took", 10, lambda r: units.clock(r.seconds) if r.seconds is not None else "",
            lambda r: r.seconds, (9, 0)),
    _figure("begun", "begun", 12, lambda r: units.ago(time.time() - r.created) if r.created else "",
            lambda r: r.created, (0, 0), right=False),
    _words("note", lambda r: r.note.partition("\n")[0], 40, "dim", (1, 20), (6, 0)),
)}


@cache
def find(name: str) -> Column[RunLine] | None:
    """The column of this name; None: there can be none."""
    from gpu_engine.spec import schema  # after the panel's first frame

    if name in COLUMNS or "." not in name or not schema.is_key(name):
        return COLUMNS.get(name)
    head = clean(name.removeprefix("task.params.").removeprefix("run.env."))
    head = fit(head, _HEAD).rstrip()
    return Column(name, head, lambda r: clean(r.settings.get(name, ""), _WIDEST),
                  width=cells(head) + 1, most=_WIDEST, gives=((12, 8), (19, 0)),
                  order=lambda r: in_a_key(r.settings.get(name)))


def in_a_key(text: str | None) -> Value | None:
    """What the column of a key is sorted by: numbers first, then texts. What is no finite number
    has no place."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return True, 0.0, text
    return (False, number, "") if math.isfinite(number) else None


def these(names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of these names, without those that can't be."""
    return tuple(found for name in names if (found := find(name)) is not None)


DEFAULT = ("state", "run", "name", "mode", "tags", "step", "loss", "best", "curve", "speed", "time")

MARK_WIDTH = 2
_LONGEST_CURVE = 40
_END = 14
"""The cells that are kept for how a run ended."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown and their widths in cells."""

    columns: tuple[Column[RunLine], ...]
    sizes: Mapping[str, int]
    marks: bool
    room: int
    """The cells that are left for how a run ended."""

    @property
    def shape(self) -> object:
        """The same for layouts in which a run has the same row."""
        return [*self.sizes.items()], self.marks, self.room


def layout(lines: Sequence[RunLine], width: int, chosen: Sequence[str] = DEFAULT, *,
           by: str | None = None, marks: bool = False,
           hues: Mapping[str, str] = MappingProxyType({})) -> Layout:
    """The columns `chosen` as they fit into `width` cells. One that would be empty is left out.
    `by`: the column that the runs are sorted by, which stays. `hues`: the styles of live runs'
    curves, by their ids, as they are when one is drawn."""
    keys = [name for name in chosen if name not in COLUMNS]
    # Most of a thousand runs have the same few names.
    distinct = {(len(line.id), line.name, line.preset, line.task, line.tags, line.note, line.mode,
                 line.world, line.verdict, line.sweep and line.sweep.name, bool(line.told),
                 line.by if line.best is not None else None,
                 *map(line.settings.get, keys)): line for line in lines}
    values = {called(r.by) for r in distinct.values() if r.best is not None and r.by}
    changes: dict[str, dict[str, Any]] = {
        "curve": {"style": lambda r: hues.get(r.id, "accent" if r.live else "dim")},
        "best": {"title": f"best {max(values, default='')}", "right": True, "within": None}
        if len(values) == 1 else {"width": 9 + max(map(cells, values), default=0)}}
    columns = tuple(replace(column, **changes.get(column.name, {}), gives=tuple(
        give for give in column.gives if give[1] or column.name != by))
        for column in these(chosen) if values or column.name != "best")
    room = width - _END - (MARK_WIDTH if marks else 0)
    found = table.fit(columns, distinct.values(), room, cells)
    spare = room - sum(size + GAP for size in found.values())
    # What others have given way for and is not needed goes back: to a value's name all of its
    # cells or none, to the runs' names as many as there are.
    whole = table.fit([replace(c, gives=()) for c in columns], distinct.values(), 0, cells)
    for name in [name for name in ("best", "name") if name in found]:
        more = whole[name] - found[name]
        if more > spare:
            more = max(spare, 0) if name == "name" else 0
        found[name] += more
        spare -= more
    if "curve" in found:  # it takes half of what is left, why a run failed the other half
        more = min(max(spare // 2, 0), _LONGEST_CURVE - found["curve"])
        found["curve"] += more
        spare -= more
    return Layout(columns, found, marks, spare + _END)


def in_order(lines: Sequence[RunLine], by: str | None, turned: bool) -> list[RunLine]:
    """The runs sorted by a column, those without a value last; by None as they are: live ones
    first, then the newest. `turned`: the other way round."""
    column = find(by) if by is not None else None
    if column is None or column.order is None:
        return list(reversed(lines)) if turned else list(lines)
    return table.in_order(lines, column, turned=turned)


# --- a run as a row ----------------------------------------------------------------------------

MARK = "▣"
_BELOW = "  └ "


def run_row(line: RunLine, layout: Layout, marked: bool = False, known: bool = False) -> Row:
    """The row of a run: one line, and a second one if there is no room for why it failed, waits or
    stands still. `known`: its warning is said above."""
    words = remarks(line, known)
    long = bool(words) and _length(joined([*words, *_ago(line)])) > layout.room
    first = Made(partial(run_line, line, layout, marked, () if long else words))
    return Row(line.id, (first, ((_BELOW, "dim"), *joined(words))) if long else (first,))


def run_line(line: RunLine, layout: Layout, marked: bool = False, said: Sequence[Part] = ()
             ) -> Line:
    """A run on one line, with what is said of it there."""
    parts: list[Part] = [(MARK + " " if marked else "  ", "accent")] if layout.marks else []
    parts += table_line(layout.columns, layout.sizes, line, behind=GAP)
    words = joined(said)
    when = [(f"{units.clock(line.seconds_left)} left", "")] \
        if line.live and not words and line.seconds_left is not None else _ago(line)
    gap = layout.room - _length(words) - _length(when)  # so that it stands at the right edge
    return (*parts, *words, (" " * (gap if when else 0), ""), *when)


def head_line(layout: Layout, by: str | None, turned: bool) -> Line:
    """The heads of the columns; the one that the runs are sorted by has an arrow."""
    marks = " " * MARK_WIDTH * layout.marks
    return ((marks + head(layout.columns, layout.sizes, by, turned) + " " * GAP, "dim"),)


def remarks(line: RunLine, known: bool = False) -> list[Part]:
    """What a person should know about a run: why it failed, waits or stands still, what is wrong
    with its folder. `known`: its warning is said above."""
    parts: list[Part] = []
    if line.reason:
        waits = line.job or line.waits
        bad = line.state in ("failed", "lost") or (line.live and not waits)
        style = "warn" if line.state == "unreadable" else "bad" if bad else "dim"
        if bad or line.live or line.state == "unreadable" or line.step is None:
            parts.append((clean(line.reason), style))
    elif line.live and line.still:
        parts.append((f"! {clean(line.still)}", "warn"))
    if line.told and not known:
        parts.append((f"! {line.told}", "warn"))
    if line.odd and line.state != "unreadable" and line.odd != line.reason:
        parts.append((clean(line.odd), "warn"))
    return parts


def _ago(line: RunLine) -> list[Part]:
    if line.live or not line.ended:
        return []
    return [(units.ago(time.time() - line.ended), "dim")]


def joined(parts: Sequence[Part]) -> Line:
    out: list[Part] = []
    for part in parts:
        out += [(" · ", "dim"), part] if out else [part]
    return tuple(out)


def _length(line: Iterable[Part]) -> int:
    return sum(cells(text) for text, _ in line)


# --- a sweep as a row --------------------------------------------------------------------------

_LONGEST, _CELLS = 22, 24
"""Cells of its name, and of its members."""
_KINDS = {"running": "accent", "failed": "bad"}
"""The styles of how many of its runs do what."""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """A sweep in the list."""

    id: str
    first: Member
    """One of its members' places, for what is the same in all of them."""
    members: tuple[RunLine, ...]
    unfolded: bool

    @property
    def may_ask(self) -> bool:
        """Whether it is a search that may get more runs."""
        return self.first.search is not None and len(self.members) < self.first.of

    @property
    def in_order(self) -> list[RunLine]:
        """Its runs in the order of the grid."""
        return sorted(self.members, key=lambda one: one.sweep.index if one.sweep else 0)

    @property
    def ranked(self) -> list[RunLine]:
        """Those that are done and have a best value, the best first."""
        done = (one for one in self.members if one.state == "completed" and one.best is not None)
        return table.in_order(done, COLUMNS["best"])

    @property
    def told(self) -> str:
        """The first warning of any of them, as `RunLine.told`."""
        return next(filter(None, (one.told for one in self.members)), "")


def fold(lines: Sequence[RunLine], unfolded: Collection[str]) -> list[RunLine | SweepLine]:
    """The list with each sweep in place of its first run; the runs of those in `unfolded`, ids,
    follow it, in the order of the grid."""
    groups: dict[str, list[RunLine]] = {}
    for line in lines:
        if line.sweep is not None:
            groups.setdefault(line.sweep.sweep, []).append(line)
    out: list[RunLine | SweepLine] = []
    for line in lines:
        place = line.sweep
        if place is None:
            out.append(line)
        elif (found := groups.pop(place.sweep, None)) is not None:
            is_open = place.sweep in unfolded
            out.append(sweep := SweepLine(place.sweep, place, tuple(found), is_open))
            if is_open:
                out += sweep.in_order
    return out


def sweep_row(line: SweepLine, layout: Layout, marked: Collection[str], matching: bool,
              known: bool = False) -> Row:
    """The row of a sweep. `matching`: whether only the runs that match a filter are listed.
    `known`: as in `run_row`."""
    from gpu_engine.sweep.table import DONE, assigned, count  # only where there are sweeps

    parts: list[Part] = []
    if layout.marks:
        every = all(one.id in marked for one in line.members)
        parts.append((MARK + " " if every else "  ", "accent"))
    sign = "▾" if line.unfolded else "▸"
    head = f"{sign} sweep"
    if layout.columns and layout.columns[0].name == "state":
        wide = layout.sizes["state"]
        head = fit(head if wide >= cells(head) else sign, wide)
    told = line.told
    parts += [(head + " " * GAP, "accent"), (line.id + " " * GAP, "strong"),
              (clean(line.first.name, _LONGEST), ""), (" !" * bool(told), "warn"),
              (" " * GAP, ""), *_each(line), (" " * GAP, "")]
    # How far it is: "best loss 0.412 · lr=3e-4 · 12 of 16 done · 1 failed".
    counts = count(one.state for one in line.members)
    done = counts.pop(DONE, 0)
    if matching and len(line.members) < line.first.of:
        match = "matches" if len(line.members) == 1 else "match"
        said: list[Part] = [(f"{len(line.members)} of its {line.first.of} runs {match}", "")]
    else:
        said = [(f"{done} of {line.first.of} done", "")]
    said += [(f"{many} {kind}", _KINDS.get(kind, "dim")) for kind, many in counts.items()]
    if ranked := line.ranked:
        best = ranked[0]
        words = [(f"best {best.by.name} {units.loss(best.best)}", "good")] if best.by else []
        if best.sweep is not None and best.sweep.values:
            words.append((assigned(best.sweep.values), "dim"))
        said = [*words, *said]
    row = (*parts, *joined(said))
    below = ((_BELOW, "dim"), (f"! {told}", "warn"))
    return Row(line.id, (row, below) if told and not known else (row,))


def _each(line: SweepLine) -> Iterable[Part]:
    """A cell for each of the first members, in the order of the grid: a done one is the higher, the
    better it is among them."""
    places = {one.id: place for place, one in enumerate(line.ranked)}
    for one in line.in_order[:_CELLS]:
        place = places.get(one.id)
        if place is None:
            yield glyph(one.state), tone(one.state)
        else:
            yield bar(1 - place / (len(places) - 1 or 1)), "good" if not place else \
                "" if 2 * place < len(places) else "dim"
    yield "…" * (len(line.members) > _CELLS), "dim"
