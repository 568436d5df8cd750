"""The ranks pane: one line for each rank, and under DataParallel one for each further device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf, isfinite
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.diagnose import steps
from gpu_engine.diagnose.hangs import is_silent
from gpu_engine.events.rank_view import RankView
from gpu_panel import keys
from gpu_panel.common import palette
from gpu_panel.common.painting import entitle
from gpu_panel.common.rows import Line, Part, Row, Rows, fit
from gpu_panel.run import devices
from gpu_panel.run.devices import DeviceFigures
from gpu_panel.run.doing import Peers, doing, missing, since_heard, standing_still, why_still
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore


def _slowness(view: RankView) -> float:
    return inf if view.step is None else view.step


def _loss(view: RankView) -> float:
    return inf if view.loss is None else -view.loss if isfinite(view.loss) else -inf


def _memory(view: RankView) -> float:
    def most(values: Iterable[int | None]) -> float:
        return max((v for v in values if v is not None), default=0)

    return -(most(view.gpu_peak) or most(view.gpu_allocated) or most([view.rss]))


ORDERS: Mapping[str, Callable[[RankView], float]] = {
    "": lambda view: 0.0, "slowest first": _slowness, "highest loss first": _loss,
    "most memory first": _memory}
"""What `o` goes through; at first by rank."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how soon it is dropped if there is too little room."""

    title: str
    order: int
    """Columns with greater numbers are dropped first; those with 0 last."""
    left: bool = False
    least: int = 0
    kind: str = ""
    """The field of `schema.Devices` that it shows."""


COLUMNS = (
    Column("rank", 0), Column("where", 3, left=True), Column("doing", 1, left=True, least=9),
    Column("step", 0, least=5), Column("loss", 0, least=6), Column("per s", 2, least=6),
    Column("data wait", 7), Column("time", 7, left=True, least=10),
    Column("util", 6, least=5, kind=devices.UTILIZATION),
    Column("power", 9, least=5, kind=devices.POWER),
    Column("temp", 9, least=5, kind=devices.TEMPERATURE),
    Column("allocated", 4), Column("reserved", 8), Column("peak", 3), Column("host", 6),
    Column("seen", 5, least=5),
)
_DOING, _TIME = 2, 7
_HUES = {letter: f"hue {i}" for i, letter in enumerate(steps.LETTERS.values()) if letter != "·"}
"""The style of each part of a step."""
_KINDS = tuple(c.kind for c in COLUMNS if c.kind)
_TEXTS = {devices.UTILIZATION: units.share, devices.POWER: lambda v: f"{v:.0f} W",
          devices.TEMPERATURE: lambda v: f"{v:.0f} °C"}
EIGHT = 11
"""Rows of the screen with eight ranks, frame and heads included."""
GAP = 2
MARK = "▸ "


class RanksPane(Rows, RunPane):  # pyright: ignore[reportIncompatibleMethodOverride]
    NAME = TITLE = "ranks"
    KEYS = keys.of("ranks")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """Every rank: where it runs, what it does now, its figures, and the time since its last
heartbeat. "per s" are examples, or steps where it says so. "time" is what a step's time goes into:
the parts stand in the order of the colours' names in the title; what is left is the rest.
Enter shows the log of the rank under the cursor. o sorts; ranks that
failed or stalled come first in any order."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._painted: tuple[RunStore, Moment] | None = None
        self._texts: dict[int, list[list[Part]]] = {}
        """The texts of each rank, in the order of the rows."""
        self.anew()

    def anew(self) -> None:
        self._shows_time, self._heading, self._seen = False, "", set[str]()
        self._order = ""
        self.chosen: int | None = None

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._painted = store, moment
        ranks, now = store.ranks, moment.now
        live = moment.live and not store.behind
        unheard = store.state.unheard if store.state is not None else ()
        heard_of = {r: v for r, v in ranks.items() if r not in unheard}
        standing = {s.rank for s in standing_still(store, now)} if live else set[int]()
        # In a hang all ranks stand still: what matters is the one that the others wait for.
        why = why_still(store, now) if live else None
        late = {*([why.rank] if why is not None and not why.works else []),
                *(r for r, v in heard_of.items() if live and is_silent(v, now))}
        table = _Table(store, now, live, unheard, standing)
        failing = {r for r, v in ranks.items()
                   if r in late or v.error is not None or v.outcome == "failed"}
        self._texts = {rank: table.lines(ranks[rank]) for rank in sorted(
            ranks, key=lambda r: (r not in failing, ORDERS[self._order](ranks[r]), r))}
        awaited = len(missing(store))
        self._heading = f"ranks ─ {len(ranks) - awaited} of {len(ranks)} started" \
            if awaited and live else f"ranks ─ {len(ranks)}"
        self.repaint()

    def _title(self) -> Content:
        """The heading, and the colours of those parts of a step that were seen so far."""
        self._seen.update(letter for rows in self._texts.values() for row in rows[:1]
                          for letter in row[_TIME][0])
        colours = palette.names(self.app)
        return Content("  ").join([Content(self._heading), *(
            Content.styled(f"━ {steps.NAMES[name]}", colours[i % palette.HUES])
            for i, (name, letter) in enumerate(steps.LETTERS.items())
            if letter in self._seen and letter in _HUES)])

    def rank_chosen(self, rank: int) -> None:
        if rank != self.chosen:
            self.chosen = rank
            if str(rank) in self.keys:
                self.cursor = self.keys.index(str(rank))
            self.repaint()

    def action_choose(self) -> None:
        if self.key_at_cursor is not None:
            self._choose(int(self.key_at_cursor))

    def on_rows_chosen(self, message: Rows.Chosen) -> None:
        message.stop()
        self._choose(int(message.key))

    def _choose(self, rank: int) -> None:
        self.rank_chosen(rank)
        self.post_message(self.RankChosen(self, rank))

    def action_sort(self) -> None:
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        if self._painted is not None:
            self.paint(*self._painted)

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        shown, widths = layout([row for rows in self._texts.values() for row in rows], width)
        self._shows_time = _TIME in shown and self.is_mounted and not self.app.no_color
        entitle(self, self._title() if self._shows_time else self._heading, self._order)
        header = _joined([(c.title, "") for c in COLUMNS], shown, widths, mark="  ")
        return header, [
            Row(str(rank), tuple(_joined(row, shown, widths, mark=MARK if rank == self.chosen
                                         and not n else "  ", bars=self._shows_time)
                                 for n, row in enumerate(rows)))
            for rank, rows in self._texts.items()]


class _Table:
    """The texts of ranks, as known at one moment."""

    def __init__(self, store: RunStore, now: float, live: bool, unheard: Collection[int],
                 still: Collection[int]) -> None:
        self._peers = Peers.of(store.ranks)
        self._where, self._keys = where_of(store), devices.keys_of(store.plan)
        self._devices = store.devices if live else DeviceFigures()
        self._now, self._live, self._unheard, self._still = now, live, unheard, still

    def lines(self, view: RankView) -> list[list[Part]]:
        """The texts of a rank: one line, and one more for each further device."""
        now, live = self._now, self._live
        still = view.rank in self._still
        where = self._where.get(view.rank) or [clean(d, 16) for d in view.devices]
        keys = self._keys.get(view.rank, [])
        bad = view.loss is not None and view.loss - view.loss != 0
        # The last pace of a rank that stands still is no longer true.
        pace = units.UNKNOWN if still else units.pace_cell(view.samples_per_s, view.steps_per_s)
        rows: list[list[Part]] = []
        for i in range(max(len(where), len(view.gpu_allocated), 1)):
            figures = self._devices.now(keys[i], now) if i < len(keys) else {}
            of_device = [(_TEXTS[kind](figures[kind]) if kind in figures else units.UNKNOWN, "")
                         for kind in _KINDS]
            memory = [(units.gib(values[i] if i < len(values) else None), "")
                      for values in (view.gpu_allocated, view.gpu_reserved, view.gpu_peak)]
            place = where[i] if i < len(where) else units.UNKNOWN
            if i:
                # Under DataParallel: all but devices and memory is said of the rank, once.
                rows.append([("", ""), (place, ""), *[("", "")] * 6, *of_device, *memory,
                             ("", ""), ("", "")])
                continue
            rows.append([
                (view.label, "strong"), (place, ""),
                doing(view, self._peers, now, live=live, unheard=self._unheard),
                (units.count(view.step), ""), (units.loss(view.loss), "bad" if bad else ""),
                (pace.removesuffix("/s"), ""),
                (units.share(None if still else view.data_wait), ""),
                (steps.bar(view) if view.spans else "", "dim" if still else ""), *of_device,
                *memory, (units.gib(view.rss), ""),
                (since_heard(view, now) if live else units.UNKNOWN,
                 "bad" if live and is_silent(view, now) else "dim"),
            ])
        return rows


def _joined(cells: Sequence[Part], shown: list[int], widths: list[int], mark: str, *,
            bars: bool = False) -> Line:
    """`bars`: a step's parts are drawn in colours, not as letters."""
    parts: list[Part] = [(mark, "accent")]
    for n, i in enumerate(shown):
        text, style = cells[i]
        text = fit(text, widths[i])
        if i == _TIME and bars:
            gap = " " * (GAP if n < len(shown) - 1 else 0)
            parts += [*(("━" * len(list(run)), _HUES.get(letter, "track"))
                        for letter, run in groupby(text.rstrip())),
                      (" " * (widths[i] - len(text.rstrip())) + gap, "")]
            continue
        text = text if COLUMNS[i].left else text.strip().rjust(widths[i])
        parts.append((text + " " * (GAP if n < len(shown) - 1 else 0), style))
    return tuple(parts)


def layout(rows: Sequence[Sequence[Part]], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit into `width` cells, and the width of every column. Those of which
    nothing is known are left out, and then the least important ones."""
    widths = [max(len(c.title), c.least, *(len(row[i][0]) for row in rows)) if rows
              else max(len(c.title), c.least) for i, c in enumerate(COLUMNS)]
    shown = [i for i, c in enumerate(COLUMNS)
             if not c.order or any(row[i][0] not in ("", units.UNKNOWN) for row in rows)]

    def room() -> int:
        return len(MARK) + sum(widths[i] for i in shown) + GAP * (len(shown) - 1)

    for last in sorted(shown, key=lambda i: COLUMNS[i].order, reverse=True):
        if room() <= width or len(shown) == 1:
            break
        shown.remove(last)
    if _DOING in shown:
        widths[_DOING] += min(max(width - room(), 0), 12)
    return shown, widths


def where_of(store: RunStore) -> dict[int, list[str]]:
    """Rank → labels of its devices, with the machine before them if it is another one."""
    return {r.rank: [clean(f"{r.host} {d.label}" if r.host else d.label, 32 if r.host else 16)
                     for d in r.devices]
            for r in (store.plan.ranks if store.plan is not None else ())}
