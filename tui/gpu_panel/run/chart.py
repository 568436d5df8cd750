"""The two charts of the run screen. Each draws any of the recorded curves."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import ClassVar

from textual import work
from textual.strip import Strip

from gpu_panel import keys, themed
from gpu_panel.charts.curves import CurveView
from gpu_panel.charts.drawing import ZoomSeries
from gpu_panel.common.background import in_thread
from gpu_panel.common.textual_private import entitle
from gpu_panel.run import subjects
from gpu_panel.run.moments import marks
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore
from gpu_panel.run.subjects import Subject

STILL = 0.15
"""Seconds for which a zoomed part stays before it is read again: a wheel turns on."""
AGAIN = 2.0
"""Seconds after which it is read once more while the run goes on in it."""


class ChartPane(CurveView, RunPane):
    """A chart that begins with the curves of `FIRST` and can show any other."""

    KEYS = keys.of("chart")
    FIRST: ClassVar[str]
    """The key of what it shows until the person chooses something else, and while the run has
    recorded nothing of what they chose."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.chosen: str = self.FIRST
        """The key of the curves that the person wants to see here."""
        self.subject: Subject | None = None
        self._painted: object = None
        self._read_to, self._read_at = 0, -math.inf
        """The last step in `zoomed`, and when that was read, monotonic seconds."""
        self._last: tuple[RunStore, Moment] | None = None

    def choose(self, key: str) -> None:
        if key == self.chosen:
            return
        self.chosen = key
        self.action_whole()  # the part that was zoomed in may be seconds or steps
        self.banded = None
        if self._last is not None:
            self.paint(*self._last)

    def anew(self) -> None:
        self._painted = self._last = self.zoomed = self.banded = None
        self.action_whole()

    @property
    def is_empty(self) -> bool:
        return not any(len(line.series) for line in self._lines)

    def redraw(self) -> None:
        super().redraw()
        self._refine()

    def frame(self, width: int, height: int) -> list[Strip]:
        before = self._cells
        strips = super().frame(width, height)
        if self._cells != before and self._window is not None:  # there is room for other steps
            self.call_later(self._refine)
        return strips

    def _refine(self) -> None:
        if self._last is not None and self._is_coarse(self._last[0]):
            assert self._window is not None
            self._read_zoomed(self._last[0], *map(int, self._window))

    def _is_coarse(self, store: RunStore) -> bool:
        if self._window is None or self.subject is None or self.subject.key != subjects.LOSS:
            return False
        x0, x1 = self._window
        stride = max((line.series.stride for line in self._lines), default=1)
        if stride == 1 or x1 - x0 >= 2 * stride * self._cells:
            return False
        if self.zoomed is None or not (self.zoomed.first <= x0 and x1 <= self.zoomed.last):
            return True
        grown = self._read_to < min(x1, store.loss.all.last or 0)
        return grown and time.monotonic() - self._read_at >= AGAIN

    @work(group="zoom", exclusive=True, exit_on_error=False)
    async def _read_zoomed(self, store: RunStore, first: int, last: int) -> None:
        """Read the part that is shown again, step by step, with a part beside it if it is small."""
        await asyncio.sleep(STILL)
        beside = last - first
        for begin, end in (max(first - beside, 0), last + beside), (first, last + 1):
            self._read_at = time.monotonic()
            found = await in_thread(lambda begin=begin, end=end: store.zoom_series(begin, end))
            if found is not None:
                pairs = [(store.loss.all, found.all)]
                pairs += [(store.loss.ranks[r], one) for r, one in found.ranks.items()]
                self._read_to = found.all.last or 0
                self.zoomed = ZoomSeries(begin, end, {id(whole): one for whole, one in pairs})
                self.redraw()
                return

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._last = store, moment
        state = (store.version, moment.rank, self.chosen)
        if state == self._painted:
            return
        self._painted = state
        found = subjects.find(store, self.chosen) or subjects.find(store, self.FIRST)
        if found is None:
            return
        self.subject, self.axes = found, found.axes if store.caught_up \
            else replace(found.axes, empty="reading …")
        place = list(store.ranks).index(moment.rank) if moment.rank in store.ranks else None
        self.show(
            found.lines(store), found.over_all(store), place,
            marks=marks(store.moments, store.view.begins, store.view.trainings, store.clock,
                        by_time=found.by_time),
            levels=found.levels(store))
        entitle(self, found.title(store))


class LossPane(ChartPane):
    """Its own keys work on the whole screen, as most people watch this chart."""

    NAME = TITLE = "loss"
    FIRST = subjects.LOSS
    KEYS = keys.of("chart", "loss")
    HELP = """The loss of every rank, step by step, or what c chooses; the chosen rank's line is
thick and on top. ┊ marks where an attempt or another training begins, ◆ an evaluation, ▪ a
checkpoint; × marks a value that is not finite."""
    DEFAULT_CSS = "LossPane { width: 62fr; }"


class MemoryPane(ChartPane):
    """GiB over the time since the run began, until something else is chosen."""

    NAME = TITLE = "memory"
    FIRST = subjects.MEMORY
    BESIDE = True
    HELP = """What PyTorch has allocated on every device, or what c chooses; the dotted line is its
peak, the dashed one the card's capacity. On CPU slots, the memory of the ranks' processes."""
    DEFAULT_CSS = "MemoryPane { width: 38fr; }"


_KEPT_AS = "curves"
"""What each chart showed last is kept for the next screen under this name in panel.json."""


def kept_choices() -> dict[str, str]:
    """Chart → the key of its curves. Blocks: call it in a thread."""
    found = themed.read().get(_KEPT_AS)
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}


def keep_choice(chart: str, key: str) -> None:
    """Blocks. Raises OSError."""
    themed.keep(_KEPT_AS, lambda: kept_choices() | {chart: key})
