"""The ranks pane: one line for each rank, and under DataParallel one for each further device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import inf, isfinite
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from gpu_engine.common import table, units
from gpu_engine.common.clean import clean
from gpu_engine.common.table import GAP, Column
from gpu_engine.diagnose import steps
from gpu_engine.diagnose.hangs import is_silent
from gpu_engine.events.rank_view import RankView
from gpu_panel import keys
from gpu_panel.common import palette
from gpu_panel.common.painting import entitle
from gpu_panel.common.rows import Line, Made, Part, Row, Rows, cells
from gpu_panel.common.table import head, line
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


Texts = Sequence[Part]
"""What is said of a rank, or of one of its devices, in the order of the columns."""


def _column(at: int, title: str, turn: int = 0, *, least: int = 0, most: int = 99,
            left: bool = False, within: Callable[[Texts, int], Line] | None = None,
            ) -> Column[Texts]:
    """`turn`: when it gives way; without, it stays to the last, even where nothing is known."""
    return Column(title, title, lambda row: row[at][0], lambda row: row[at][1], within=within,
                  width=least, most=most, right=not left, stays=not turn,
                  gives=((turn or 20 + at, 0),))


def _bars(row: Texts, width: int) -> Line:
    """A step's parts in `width` cells, each with its percentage where that has room: in colours, or
    without them as letters."""
    text, style = row[_TIME]
    line, reached, drawn = list[Part](), 0, 0
    for letter, run in groupby(text):
        share = len(list(run))
        reached += share
        size = round(reached / PARTS * width) - drawn  # of what was reached, so that none is lost
        drawn += size
        said = f" {share} % " if size > len(f" {share} % ") else ""
        line.append((f"{said:{'━' if style == _COLOURED else letter}^{size}}" * bool(size),
                     _HUES.get(letter, "track") if style == _COLOURED else style))
    return tuple(line)


PARTS = 100
"""The letters in which a step's parts are kept: percent."""
_TIME, _COLOURED = 7, "hues"
_HUES = {letter: f"hue {i}" for i, letter in enumerate(steps.LETTERS.values()) if letter != "·"}
"""The style of each part of a step."""
_FIGURES: Mapping[str, Callable[[float], str]] = {
    devices.UTILIZATION: units.share, devices.POWER: lambda v: f"{v:.0f} W",
    devices.TEMPERATURE: lambda v: f"{v:.0f} °C"}
"""The fields of `schema.Devices` that are shown."""
COLUMNS = (
    _column(0, "rank"), _column(1, "where", 10, left=True),
    _column(2, "doing", 13, left=True, least=9), _column(3, "step", least=5),
    _column(4, "loss", least=6), _column(5, "per s", 12, least=6), _column(6, "data wait", 4),
    _column(_TIME, "time", 5, left=True, least=10, most=10, within=_bars),
    _column(8, "util", 6, least=5), _column(9, "power", 1, least=5),
    _column(10, "temp", 2, least=5), _column(11, "allocated", 9),
    _column(12, "reserved", 3), _column(13, "peak", 11), _column(14, "host", 7),
    _column(15, "seen", 8, least=5),
)
EIGHT = 11
"""Rows of the screen with eight ranks, frame and heads included."""
MARK = "▸ "


class RanksPane(Rows, RunPane):  # pyright: ignore[reportIncompatibleMethodOverride]
    NAME = TITLE = "ranks"
    KEYS = keys.of("ranks")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(KEYS)
    HELP = """Every rank: where it runs, what it does now, its figures, and the time since its last
heartbeat. "per s" are examples, or steps where it says so. "time" is what a step's time goes into:
the parts stand in the order of their names in the title, the rest in grey at the end.
Enter shows the log of the rank under the cursor. o sorts; ranks that
failed or stalled come first in any order."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._painted: tuple[RunStore, Moment] | None = None
        self._texts: dict[int, list[list[Part]]] = {}
        """The texts of each rank, in the order of the rows."""
        self.anew()

    def anew(self) -> None:
        self._heading, self._seen = "", set[str]()
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
        told = _Told(store, now, live, unheard, standing, _COLOURED * self._in_colours)
        failing = {r for r, v in ranks.items()
                   if r in late or v.error is not None or v.outcome == "failed"}
        self._texts = {rank: told.lines(ranks[rank]) for rank in sorted(
            ranks, key=lambda r: (r not in failing, ORDERS[self._order](ranks[r]), r))}
        # Also of what takes too little to be drawn: a part must not come and go.
        self._seen.update(name for view in ranks.values() if view.spans for name in steps.NAMES
                          if name == steps.REST or getattr(view.spans[-1], name))
        awaited = len(missing(store))
        self._heading = f"ranks ─ {len(ranks) - awaited} of {len(ranks)} started" \
            if awaited and live else f"ranks ─ {len(ranks)}"
        self.repaint()

    def _title(self) -> Content:
        """The heading, and the colours of the parts of a step."""
        colours = palette.names(self.app)
        return Content("  ").join([Content(self._heading), *(
            Content.styled(f"{'━' if self._in_colours else letter} {steps.NAMES[name]}",
                           colours[i % palette.HUES] if letter in _HUES else "$text-muted")
            for i, (name, letter) in enumerate(steps.LETTERS.items()) if name in self._seen)])

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
        sizes = layout([row for rows in self._texts.values() for row in rows], width)
        shows_time = "time" in sizes and self.is_mounted
        entitle(self, self._title() if shows_time else self._heading, self._order)

        def made(rank: int, row: Texts, first: bool) -> Line:
            return ((MARK if rank == self.chosen and first else "  ", "accent"),
                    *line(COLUMNS, sizes, row))

        return (("  ", "accent"), (head(COLUMNS, sizes), "")), [
            Row(str(rank), tuple(Made(partial(made, rank, row, row is rows[0])) for row in rows))
            for rank, rows in self._texts.items()]

    @property
    def _in_colours(self) -> bool:
        return self.is_mounted and not self.app.no_color


class _Told:
    """The texts of ranks, as known at one moment."""

    def __init__(self, store: RunStore, now: float, live: bool, unheard: Collection[int],
                 still: Collection[int], bars: str) -> None:
        """`bars`: the style of what a step's time goes into."""
        self._peers = Peers.of(store.ranks)
        self._keys, self._labels = devices.keys_of(store.plan), devices.labels_of(store.plan)
        self._devices = store.devices if live else DeviceFigures()
        self._now, self._live, self._unheard, self._still = now, live, unheard, still
        self._bars, self._behind = bars, store.behind

    def lines(self, view: RankView) -> list[list[Part]]:
        """The texts of a rank: one line, and one more for each further device."""
        now, live = self._now, self._live
        still = view.rank in self._still
        keys = self._keys.get(view.rank, [])
        where = [self._labels[key] for key in keys] or [clean(d, 16) for d in view.devices]
        bad = view.loss is not None and view.loss - view.loss != 0
        # The last pace of a rank that stands still is no longer true.
        pace = units.UNKNOWN if still else units.pace_cell(view.samples_per_s, view.steps_per_s)
        rows: list[list[Part]] = []
        for i in range(max(len(where), len(view.gpu_allocated), 1)):
            figures = self._devices.now(keys[i], now) if i < len(keys) else {}
            of_device = [(text(figures[kind]) if kind in figures else units.UNKNOWN, "")
                         for kind, text in _FIGURES.items()]
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
                # What was read so far is of the past, and no end.
                ("reading …", "dim") if self._behind else
                doing(view, self._peers, now, live=live, unheard=self._unheard),
                (units.count(view.step), ""), (units.loss(view.loss), "bad" if bad else ""),
                (pace.removesuffix("/s"), ""),
                (units.share(None if still else view.data_wait), ""),
                (steps.bar(view, PARTS) if view.spans else "", self._bars or "dim" * still),
                *of_device, *memory, (units.gib(view.rss), ""),
                (since_heard(view, now) if live else units.UNKNOWN,
                 "bad" if live and is_silent(view, now) else "dim"),
            ])
        return rows


def layout(rows: Sequence[Texts], width: int) -> dict[str, int]:
    """The columns that fit into `width` cells behind the mark, and their cells."""
    room = width - len(MARK) + GAP
    sizes = table.fit(COLUMNS, rows, room, cells)
    if "doing" in sizes:
        sizes["doing"] += max(min(room - sum(sizes.values()) - GAP * len(sizes), 12), 0)
    if "time" in sizes:  # all that is left: a bar shows more, the longer it is
        sizes["time"] += max(room - sum(sizes.values()) - GAP * len(sizes), 0)
    return sizes
