"""The ranks pane: one line for each rank, and under DataParallel one for each further device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from textual.binding import BindingType

from gpu_engine.common.clean import clean
from gpu_engine.diagnose import steps
from gpu_engine.events.rank_view import RankView
from gpu_engine.plan.records import LaunchPlan
from gpu_panel import keys
from gpu_panel.common import units
from gpu_panel.common.rows import Line, Part, Row, Rows, fit
from gpu_panel.run import devices
from gpu_panel.run.devices import DeviceFigures, DeviceKey
from gpu_panel.run.doing import (
    Peers,
    doing,
    is_silent,
    missing,
    since_heard,
    stalled,
)
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore

BY_RANK, SLOWEST, LOSS, MEMORY = "rank", "slowest", "highest loss", "most memory"
ORDERS = (BY_RANK, SLOWEST, LOSS, MEMORY)
HOLDS = 3.0
"""Seconds for which an order holds, as rows that change places each second can't be read."""


def _slowness(view: RankView) -> tuple[float, float]:
    rate = view.samples_per_s if view.samples_per_s is not None else view.steps_per_s
    return (inf if view.step is None else view.step, inf if rate is None else rate)


def _loss(view: RankView) -> tuple[float, float]:
    if view.loss is None:
        return 1.0, 0.0
    return 0.0, -view.loss if isfinite(view.loss) else -inf


def _memory(view: RankView) -> tuple[float, float]:
    def most(values: Iterable[int | None]) -> float:
        return float(max((v for v in values if v is not None), default=0))

    return -most(view.gpu_peak) or -most(view.gpu_allocated), -most([view.rss])


_KEYS: Mapping[str, Callable[[RankView], tuple[float, float]]] = {
    BY_RANK: lambda view: (0.0, 0.0), SLOWEST: _slowness, LOSS: _loss, MEMORY: _memory}


def is_failing(view: RankView, late: Collection[int]) -> bool:
    return view.error is not None or view.outcome == "failed" or view.rank in late


class RankOrder:
    """The order that was chosen. Ranks that fail come first in any of them."""

    def __init__(self) -> None:
        self.by = BY_RANK
        self._made: tuple[object, float] = (None, -inf)
        self._ranks: list[int] = []

    def of(self, ranks: Mapping[int, RankView], late: Collection[int], now: float) -> list[int]:
        """The ranks in this order. `late`: silent or holding up others; `now`: Unix seconds."""
        failing = frozenset(r for r, view in ranks.items() if is_failing(view, late))
        state = (self.by, tuple(ranks), failing)
        if state != self._made[0] or not 0 <= now - self._made[1] < HOLDS:
            self._made = state, now
            key = _KEYS[self.by]
            self._ranks = sorted(ranks, key=lambda r: (r not in failing, key(ranks[r]), r))
        return self._ranks


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how soon it is dropped if there is too little room."""

    title: str
    order: int
    """Columns with greater numbers are dropped first; those with 0 last."""
    left: bool = False
    least: int = 0
    sorts: str = ""
    """The order in which a click on its heading puts the ranks."""


COLUMNS = (
    Column("rank", 0, sorts=BY_RANK), Column("where", 3, left=True),
    Column("doing", 1, left=True, least=9), Column("step", 0, least=5, sorts=SLOWEST),
    Column("loss", 0, least=6, sorts=LOSS),
    Column("per s", 2, least=6, sorts=SLOWEST), Column("data wait", 7),
    Column("time", 7, left=True, least=10),
    Column("util", 6, least=5), Column("power", 9, least=5), Column("temp", 9, least=5),
    Column("allocated", 4, sorts=MEMORY), Column("reserved", 8, sorts=MEMORY),
    Column("peak", 3, sorts=MEMORY), Column("host", 6, sorts=MEMORY),
    Column("seen", 5, least=5),
)
_OF_GPUS = frozenset(i for i, c in enumerate(COLUMNS)
                     if c.title in ("allocated", "reserved", "peak"))
_TIME = next(i for i, c in enumerate(COLUMNS) if c.title == "time")
_OF_DEVICES = {i: kind for i, c in enumerate(COLUMNS) for title, kind in (
    ("util", devices.UTILIZATION), ("power", devices.POWER), ("temp", devices.TEMPERATURE))
    if c.title == title}
_TEXTS = {devices.UTILIZATION: units.share, devices.POWER: lambda v: f"{v:.0f} W",
          devices.TEMPERATURE: lambda v: f"{v:.0f} °C"}
GAP = 2
MARK = "▸ "


class RanksPane(Rows, RunPane):  # pyright: ignore[reportIncompatibleMethodOverride]
    NAME = TITLE = "ranks"
    KEYS = keys.of("ranks")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """Every rank: where it runs, what it does now, its figures, and the time since its last
heartbeat. "per s" are examples, or steps where it says so. "time" is what a step's time goes into,
a letter a tenth: d data, f forward, b backward, w waiting for others, o optimizer, s saving,
e evaluation, · the rest. Enter shows the log of the rank under the cursor. o or a click on a
heading sorts; ranks that failed or stalled come first in any order."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ranks: Mapping[int, RankView] = {}
        self._now = 0.0
        self._where: dict[int, list[str]] = {}
        self._live = True
        self._hidden: frozenset[int] = frozenset()
        self._plan: LaunchPlan | None = None
        self._devices = DeviceFigures()
        self._device_keys: dict[int, list[DeviceKey]] = {}
        self._still: set[int] = set()
        self._unheard: Collection[int] = ()
        self._late: set[int] = set()
        """Ranks that are silent, and the one that seems to hold up the others."""
        self._order = RankOrder()
        self._texts: dict[int, list[list[Part]]] = {}
        """The texts of each rank, made from what was shown last; empty before they are made."""
        self._headings: list[tuple[int, int]] = []
        """(the cell after its last one, column) of each heading, from left to right."""
        self.chosen: int | None = None

    def paint(self, store: RunStore, moment: Moment) -> None:
        self.show(store.ranks, store.plan, now=moment.now, live=moment.live and not store.behind,
                  figures=store.devices,
                  unheard=store.state.unheard if store.state is not None else ())

    def anew(self) -> None:
        self.chosen, self._plan, self._where, self._device_keys = None, None, {}, {}
        self._order = RankOrder()

    def show(self, ranks: Mapping[int, RankView], plan: LaunchPlan | None, *, now: float,
             live: bool, figures: DeviceFigures | None = None,
             unheard: Collection[int] = ()) -> None:
        """Show these ranks. `plan`: that of their run, None if it is not known; `now`: unix
        seconds; `figures`: those of their devices; `unheard`: see `State.unheard`."""
        self._unheard = unheard
        heard_of = {r: v for r, v in ranks.items() if r not in unheard}
        self._ranks, self._now, self._live, self._texts = ranks, now, live, {}
        if plan is not self._plan:
            self._plan, self._where = plan, where_of(plan)
            self._device_keys = devices.keys_of(plan)
        self._devices = figures if figures is not None and live else DeviceFigures()
        known = {kind for key in self._devices.latest for kind in self._devices.now(key, now)}
        cpu = plan is not None and plan.device_type == "cpu"
        self._hidden = (_OF_GPUS if cpu else frozenset()) | {
            i for i, kind in _OF_DEVICES.items() if kind not in known} | (
            frozenset() if any(view.spans for view in ranks.values()) else {_TIME})
        standing = [s.rank for s in stalled(heard_of, now)] if live else []
        self._still = set(standing)
        # In a hang all ranks stand still: what matters is the one that the others wait for.
        self._late = {*standing[:1],
                      *(r for r, v in heard_of.items() if live and is_silent(v, now))}
        awaited = len(missing(ranks))
        heard = len(ranks) - awaited
        self.entitle(f"ranks ─ {heard} of {len(ranks)} started" if awaited and live
                     else f"ranks ─ {len(ranks)}",
                     "" if self._order.by == BY_RANK else f"{self._order.by} first")
        self.repaint()

    @property
    def lines(self) -> int:
        return sum(len(row.lines) for row in self._rows)

    def rank_chosen(self, rank: int) -> None:
        if rank == self.chosen:
            return
        self.chosen = rank
        shown = self.keys
        if str(rank) in shown:
            self.cursor = shown.index(str(rank))
        self.repaint()

    def action_choose(self) -> None:
        if self.key_at_cursor is not None:
            self._choose(int(self.key_at_cursor))

    def action_sort(self) -> None:
        self._sort(ORDERS[(ORDERS.index(self._order.by) + 1) % len(ORDERS)])

    def header_clicked(self, x: int) -> None:
        """Sort by the column that was clicked; a second click sorts by rank again."""
        for end, column in self._headings:
            if x < end:
                wanted = COLUMNS[column].sorts
                if wanted:
                    self._sort(BY_RANK if wanted == self._order.by else wanted)
                return

    def _sort(self, by: str) -> None:
        self._order.by = by
        self.border_subtitle = "" if by == BY_RANK else f"{by} first"
        self.repaint()

    def on_rows_chosen(self, message: Rows.Chosen) -> None:
        message.stop()
        self._choose(int(message.key))

    def _choose(self, rank: int) -> None:
        self.rank_chosen(rank)
        self.post_message(self.RankChosen(self, rank))

    # --- drawing --------------------------------------------------------------------------------

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        now, still, made = self._now, self._still, self._texts
        if not made:
            peers = Peers.of(self._ranks)
            made = self._texts = {rank: self._cells(view, peers, now, rank in still)
                                  for rank, view in self._ranks.items()}
        cells = {rank: made[rank] for rank in self._order.of(self._ranks, self._late, now)}
        shown, widths = layout([row for rows in cells.values() for row in rows], width,
                               self._hidden)
        header = _joined([(c.title, "") for c in COLUMNS], shown, widths, mark="  ")
        end, self._headings = len(MARK), []
        for i in shown:
            end += widths[i] + GAP
            self._headings.append((end, i))
        rows = [Row(str(rank), tuple(
                    _joined(row, shown, widths,
                            mark=MARK if rank == self.chosen and i == 0 else "  ")
                    for i, row in enumerate(of_rank)))
                for rank, of_rank in cells.items()]
        return header, rows

    def _cells(self, view: RankView, peers: Peers, now: float, still: bool) -> list[list[Part]]:
        """The texts of a rank: one line, and one more for each further device."""
        activity, style = doing(view, peers, now, live=self._live, unheard=self._unheard)
        where = self._where.get(view.rank) or [clean(d, 16) for d in view.devices]
        stale = self._live and is_silent(view, now)
        bad = view.loss is not None and view.loss - view.loss != 0
        beat = since_heard(view, now) if self._live else units.UNKNOWN
        many = max(len(where), len(view.gpu_allocated), 1)
        pace = units.UNKNOWN if still else units.pace_cell(view.samples_per_s, view.steps_per_s)
        wait = None if still else view.data_wait
        keys = self._device_keys.get(view.rank, [])
        rows: list[list[Part]] = []
        for i in range(many):
            now_there = self._devices.now(keys[i], now) if i < len(keys) else {}
            of_device = [(_TEXTS[kind](now_there[kind]) if kind in now_there else units.UNKNOWN,
                          "") for kind in _OF_DEVICES.values()]
            memory = [(units.gib(_at(values, i)), "")
                      for values in (view.gpu_allocated, view.gpu_reserved, view.gpu_peak)]
            place = where[i] if i < len(where) else units.UNKNOWN
            if i:
                rows.append([("", ""), (place, ""), *[("", "")] * 6, *of_device, *memory,
                             ("", ""), ("", "")])
                continue
            rows.append([
                (view.label, "strong"), (place, ""), (activity, style),
                (units.count(view.step), ""), (units.loss(view.loss), "bad" if bad else ""),
                (pace.removesuffix("/s"), ""), (units.share(wait), ""),
                (steps.bar(view), "dim" if still else ""), *of_device, *memory,
                (units.gib(view.rss), ""),
                (beat, "bad" if stale else "dim"),
            ])
        return rows


def _joined(cells: Sequence[Part], shown: list[int], widths: list[int], mark: str) -> Line:
    parts: list[Part] = [(mark, "accent")]
    for n, i in enumerate(shown):
        text, style = cells[i]
        width = widths[i]
        text = fit(text, width) if COLUMNS[i].left else fit(text, width).strip().rjust(width)
        parts.append((text + " " * (GAP if n < len(shown) - 1 else 0), style))
    return tuple(parts)


def layout(rows: Sequence[Sequence[Part]], width: int, hidden: frozenset[int] = frozenset(),
           ) -> tuple[list[int], list[int]]:
    """The columns that fit into `width` cells, and the width of every column. The least important
    columns are dropped first."""
    widths = [max(len(c.title), c.least, *(len(row[i][0]) for row in rows)) if rows
              else max(len(c.title), c.least) for i, c in enumerate(COLUMNS)]
    shown = [i for i in range(len(COLUMNS)) if i not in hidden]
    # A column without any known value is the first to go.
    order = sorted(shown, key=lambda i: (_unknown(rows, i), COLUMNS[i].order), reverse=True)
    for last in order:
        if _room(shown, widths) <= width or len(shown) == 1:
            break
        shown.remove(last)
    spare = width - _room(shown, widths)
    if 2 in shown and spare > 0:
        widths[2] += min(spare, 12)
    return shown, widths


def where_of(plan: LaunchPlan | None) -> dict[int, list[str]]:
    """Rank → labels of its devices, with the machine before them if it is another one."""
    return {r.rank: [clean(f"{r.host} {d.label}" if r.host else d.label, 32 if r.host else 16)
                     for d in r.devices]
            for r in (plan.ranks if plan is not None else ())}


def _room(shown: list[int], widths: list[int]) -> int:
    return len(MARK) + sum(widths[i] for i in shown) + GAP * (len(shown) - 1)


def _unknown(rows: Sequence[Sequence[Part]], i: int) -> bool:
    return COLUMNS[i].order > 0 and all(row[i][0] in ("", units.UNKNOWN) for row in rows)


def _at(values: Sequence[int | None], i: int) -> int | None:
    return values[i] if i < len(values) else None
