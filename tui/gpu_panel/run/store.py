"""What is known about one run. One task reads what its ranks append and folds it in.

Events cause no messages in the app; a pane reads the store when it is painted. Reading and parsing
happen in a thread, a bounded batch at a time, so that neither a slow disk nor a million events
freeze the screen. Folding happens in the event loop, so that a pane never sees half of what a rank
has told.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import cast

from gpu_engine.common.series import Series
from gpu_engine.diagnose import device_times, verdicts
from gpu_engine.diagnose.verdicts import Verdict
from gpu_engine.events import schema
from gpu_engine.events.paths import devices_paths
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import RunReader, Tail
from gpu_engine.events.schema import Event
from gpu_engine.events.view import RunView, points_of
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import Run, State
from gpu_panel.charts.series import RankSeries
from gpu_panel.common.reading import Followed
from gpu_panel.run import recorded
from gpu_panel.run.devices import DeviceFigures
from gpu_panel.run.moments import Moments, RunClock
from gpu_panel.run.recorded import Recorded
from gpu_panel.run.snapshot import Look, Turn, look

BATCH = 0.01
"""Seconds of reading at a time. Folding what was read takes the event loop about as long."""
LIVE_EVERY, DONE_EVERY = 0.3, 2.0
"""Seconds between reads, of a live run and of one that has ended."""
MANY, MANY_EVERY = 16, 1.0
"""With more ranks than that, a live run is read less often: most of the cost is per read and rank,
and at so many nobody sees the difference."""
JUDGED_EVERY = 5.0
"""Seconds between two readings of why the run is slow."""
AT_ONCE = 8
"""Ranks whose news are folded before other tasks get their turn."""


@dataclass(slots=True)
class MemorySeries:
    """Bytes over whole seconds since the run began. Keys: (rank, device), for `rss` the rank."""

    allocated: dict[tuple[int, int], Series] = field(default_factory=dict)
    peak: dict[tuple[int, int], Series] = field(default_factory=dict)
    reserved: dict[tuple[int, int], Series] = field(default_factory=dict)
    rss: dict[int, Series] = field(default_factory=dict)
    all_allocated: Series = field(default_factory=Series)
    all_rss: Series = field(default_factory=Series)
    """Over all ranks and devices, for the band."""

    def add(self, rank: int, seconds: Sequence[int],
            events: Sequence[schema.Memory]) -> None:
        for name, into in (("gpu_allocated", self.allocated), ("gpu_peak", self.peak),
                           ("gpu_reserved", self.reserved)):
            each = [getattr(event, name) for event in events]
            for device in range(max(map(len, each))):
                known = [v[device] if device < len(v) else None for v in each]
                both = (into.setdefault((rank, device), Series()),) if any(
                    v is not None for v in known) else ()
                _put(seconds, known, *both,
                     *((self.all_allocated,) if into is self.allocated else ()))
        rss = [event.rss for event in events]
        if any(value is not None for value in rss):
            _put(seconds, rss, self.rss.setdefault(rank, Series()), self.all_rss)


@dataclass
class OtherOptimizer:
    name: str
    loss: RankSeries = field(default_factory=RankSeries)


def _put(xs: Sequence[int], values: Sequence[int | None], *into: Series) -> None:
    """Add those of the values that are known to several series."""
    known = [(x, float(value)) for x, value in zip(xs, values, strict=True) if value is not None]
    known.sort(key=itemgetter(0))  # they nearly always are in order
    if known:
        at, found = [x for x, _ in known], [value for _, value in known]
        for series in into:
            series.add_rising(at, found)


class RunStore(Followed):
    """Everything that the run screen shows: state, plan, the view of the events, and curves."""

    def __init__(self, run: Run, *, curved: int = sys.maxsize, most: int = recorded.MOST) -> None:
        """`curved`: ranks, the first ones, whose curves are kept. `most`: curves of recorded
        values."""
        super().__init__()
        self.run = run
        self._curved = curved
        self.plan: LaunchPlan | None = None
        """None before it was read, or if it can't be read."""
        self.state: State | None = None
        self._judged, self._verdicts = 0.0, list[Verdict]()
        self._readings = device_times.Readings()
        self.view = RunView()
        self.loss = RankSeries()
        self.others: dict[int, OtherOptimizer] = {}
        """Optimizers after the first, by their number, from 1."""
        self.memory = MemorySeries()
        self.devices = DeviceFigures()
        self.recorded = Recorded(most)
        self.times = RankSeries()
        """When steps were made, by the clock: of one rank."""
        self.moments = Moments()
        self.clock = RunClock()
        """What charts over time are drawn by."""
        self.named: str | None = None
        """The name that the person gave it; None: none but the one that it was started with."""
        self.launchers: list[str] = []
        self.suspended: dict[int, int] = {}
        self.unheard: str | None = None
        self.turn: Turn | None = None
        self.left: list[int] = []
        self.read_share = 0.0
        """The share of it that has been read, from 0 to 1."""
        self.behind = False
        """Whether much is not read yet: what was read is of the past, and says nothing of now."""
        self._reader = RunReader(run.path)
        self._tails: dict[str | None, Tail] = {}
        """Host → the file of its devices' figures."""
        self._seen: Look | None = None
        self._changed = asyncio.Event()
        self._looked = -math.inf
        """When the state was read last, monotonic seconds."""

    # --- looking --------------------------------------------------------------------------------

    @property
    def skipped_lines(self) -> int:
        return self._reader.skipped

    @property
    def ranks(self) -> dict[int, RankView]:
        return self.view.ranks

    def verdicts(self, now: float) -> list[Verdict]:
        """Why the run is slow, looked at every few seconds. `now`: Unix seconds."""
        if not self._judged <= now < self._judged + JUDGED_EVERY:
            self._judged = now
            self._verdicts = verdicts.of(list(self.ranks.values()), self._readings.devices())
        return self._verdicts

    def launch_warnings(self) -> list[str]:
        return list(self.plan.warnings) if self.plan is not None else []

    async def wait_for(self, condition: Callable[[RunStore], bool],
                       seconds: float = 10.0) -> None:
        """Wait until `condition` is true for this store. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    # --- reading --------------------------------------------------------------------------------

    async def read_on(self) -> float:
        now = time.monotonic()
        if now - self._looked >= 1.0 or not self.ranks:
            self._looked = now
            self._apply(await asyncio.to_thread(self._poll))
            for host, reading in await asyncio.to_thread(self._read_devices):
                self.devices.fold(host, reading, self.clock.seconds(reading.t))
                self._readings.add(host, reading)
                self._note_change()
        fresh = await asyncio.to_thread(self._reader.read, BATCH)
        self.behind = self._reader.behind()
        for begin in range(0, max(len(fresh), 1), AT_ONCE):
            self.fold(fresh[begin:begin + AT_ONCE])
            await asyncio.sleep(0)
        if not self.caught_up:
            self.read_share = self._reader.share()
        if self._reader.cut_short:
            self._note_change()
            return 0.0
        if fresh or not self.caught_up:
            self.caught_up = True
            self._note_change()
        live = self.state is None or self.state.live
        return DONE_EVERY if not live else LIVE_EVERY if len(self.ranks) <= MANY else MANY_EVERY

    async def poll_now(self) -> None:
        self._apply(await asyncio.to_thread(self._poll))

    def _poll(self) -> Look:
        for host, path in devices_paths(self.run.path).items():
            if host not in self._tails:
                self._tails[host] = Tail(path)
        return look(self.run, self.plan, self.state.attempt if self.state else None,
                    list(self.ranks.values()), self.turn)

    def _read_devices(self) -> list[tuple[str | None, schema.Devices]]:
        """(host, reading) of everything that is new, in pieces of at most 1 MiB a file. Blocks."""
        return [(host, event) for host, tail in self._tails.items() for event in tail.read()
                if isinstance(event, schema.Devices)]

    def _apply(self, seen: Look) -> None:
        if seen != self._seen:
            self._seen = seen
            self.state, self.plan, self.turn = seen.state, seen.plan or self.plan, seen.turn
            self.left, self.launchers = seen.left, seen.launchers
            self.suspended, self.unheard = seen.suspended, seen.unheard
            self.named = seen.named
            self.clock.learn(self.state)
            self._forget_attempt()
            self._note_change()
        if any(rank not in self.ranks for rank in seen.ranks):
            self._reader.add(seen.ranks)
            self.view.add(seen.ranks)
            self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self._changed.set()

    # --- folding --------------------------------------------------------------------------------

    def fold(self, fresh: Iterable[tuple[int, Sequence[Event]]]) -> None:
        """Take in events: for each rank a list in the order in which they were written."""
        for rank, events in fresh:
            steps, memory = list[schema.Step](), list[schema.Memory]()
            for kind, each in groupby(events, type):
                alike = list(each)
                if kind is schema.Step:
                    steps += cast("list[schema.Step]", alike)
                elif kind is schema.Memory:
                    memory += cast("list[schema.Memory]", alike)
                elif kind not in (schema.Phase, schema.StepTime):
                    self._many(rank, steps, memory)
                    steps, memory = [], []
                    for event in alike:
                        self._other(self.view.fold(rank, event), event)
                    continue
                self.view.fold_alike(rank, alike)
            self._many(rank, steps, memory)
        self._forget_attempt()

    def _other(self, view: RankView, event: Event) -> None:
        if isinstance(event, schema.Metric | schema.Eval):
            if isinstance(event, schema.Eval):
                self.moments.evaluated(event)
            if view.rank < self._curved:
                step = self.recorded.named(view, event)
                if view.step is None:  # of a script whose steps are not seen
                    self._timed(view.rank, [step], [event.t])
        elif isinstance(event, schema.Checkpoint):
            self.moments.saved(event)
        elif isinstance(event, schema.Start):
            self.clock.begun(event.attempt or 1, event.t)
            self.moments.begun(event)
            self.recorded.begin(view.rank)
            for series in (self.loss, self.times, *(o.loss for o in self.others.values())):
                series.begin(view.rank, view.attempt)

    def _forget_attempt(self) -> None:
        """Forget how the ranks ended in an earlier attempt, once a new one has started."""
        if self.state is not None and self.state.live:
            self.view.begin_attempt(self.state.attempt)

    def _many(self, rank: int, steps: Sequence[schema.Step], memory: Sequence[schema.Memory]
              ) -> None:
        """Add what is frequent, many at a time: so a point costs no call of its own."""
        if rank >= self._curved:
            return
        for event in steps:
            for index, other in (event.others or {}).items():
                found = self.others.get(index)
                if found is None:
                    found = self.others[index] = OtherOptimizer((other.name or str(index))[:40])
                    self.others = dict(sorted(self.others.items()))
                add_losses(found.loss, rank, (other,))
        steps = [event for event in steps if event.n]  # 0: only other optimizers have stepped
        if steps:
            add_losses(self.loss, rank, steps)
            self.recorded.stepped(rank, steps)
            self._timed(rank, [event.step for event in steps], [event.t for event in steps])
        if memory:
            self.memory.add(rank, [int(self.clock.seconds(e.t) or 0) for e in memory], memory)


    def _timed(self, rank: int, steps: Sequence[int], times: Sequence[float]) -> None:
        """Take in when these steps were made. Of several ranks the first is as good as all."""
        if rank == min(self.view.ranks):
            self.times.extend(rank, steps, [self.clock.seconds(t) or 0.0 for t in times])


# --- losses of step events, many at a time --------------------------------------------------------

StepEvent = schema.Step | schema.Other


def add_losses(series: RankSeries, rank: int, events: Sequence[StepEvent]) -> None:
    """Add the losses of these events of a rank, in the order of its file."""
    if events and all(event.losses for event in events):
        first = events[0].step - len(events[0].losses) + 1
        values = list(chain.from_iterable(event.losses for event in events))
        if first >= 0 and all(
                event.step - len(event.losses) == before.step
                for before, event in pairwise(events)):
            # Nearly always: each step's loss, and no step is missing.
            series.extend(rank, range(first, events[-1].step + 1), values)
            return
    points = [point for event in events for point in points_of(event, 0.0) if point[0] >= 0]
    if points:
        steps, _, *columns = zip(*points, strict=True)
        series.extend(rank, steps, *columns)
