"""What is known of one run: one task reads what its ranks append and folds it in.

Nothing goes through the app's messages an event: whoever paints looks here when it is time to.
Reading and parsing happen in a thread, a bounded batch at a time, so neither a slow disk nor a
million events freeze the screen; folding happens in the loop, so that a painter never sees half
of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import RunReader
from gpu_engine.events.schema import Event
from gpu_engine.events.view import Progress, RunView, SavedCheckpoint
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import AttemptRecord, Run, State
from gpu_panel.charts.series import RankSeries, Series
from gpu_panel.run.look import Look, look

BATCH = 0.02
"""Seconds of reading before the loop has its turn."""
LIVE_EVERY, DONE_EVERY = 0.25, 2.0
"""Seconds between looks."""


@dataclass(slots=True)
class MemorySeries:
    """Bytes over whole seconds since the run began, a series a rank and device."""

    allocated: dict[tuple[int, int], Series] = field(default_factory=dict)
    peak: dict[tuple[int, int], Series] = field(default_factory=dict)
    rss: dict[int, Series] = field(default_factory=dict)


@dataclass
class OtherOptimizer:
    """An optimizer beside the first: its name, and the losses that it stepped on."""

    name: str
    loss: RankSeries = field(default_factory=RankSeries)


class RunStore:
    """Everything the run screen shows of a run: `view`, what the events say, and curves.
    `version` rises when anything changed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plan: LaunchPlan | None = None
        """None until it was read, and where it can't be."""
        self.state: State | None = None
        """None until it was read once."""
        self.view = RunView()
        self.loss = RankSeries()
        self.others: dict[int, OtherOptimizer] = {}
        """Optimizers beside the first, by their number, from 1."""
        self.memory = MemorySeries()
        self.launchers: list[str] = []
        """Names of the logs that launchers write, one a node: "node0"."""
        self.suspended: dict[int, int] = {}
        """Rank → pid, of silent ranks that a signal has stopped."""
        self.unheard: str | None = None
        """Why nothing is heard of the ranks, where it is the disk's fault."""
        self.left: list[int] = []
        """Pids that still run of a lost run."""
        self.version = 0
        self.caught_up = False
        """Whether everything that was there has been read once."""
        self.read_share = 0.0
        self._reader = RunReader(run.path)
        self._began: float | None = None
        self._changed = asyncio.Event()

    # --- looking --------------------------------------------------------------------------------

    @property
    def skipped_lines(self) -> int:
        """Lines that did not parse."""
        return self._reader.skipped

    @property
    def ranks(self) -> dict[int, RankView]:
        """The view of each rank, in order."""
        return self.view.ranks

    @property
    def saved(self) -> SavedCheckpoint | None:
        """The last checkpoint."""
        return self.view.saved

    @property
    def evaluations(self) -> list[tuple[int | None, dict[str, float]]]:
        """(step, name → value), oldest first; the last few."""
        return self.view.evaluations

    @property
    def begins(self) -> dict[int, int]:
        """Attempt → the first step it did; attempts after the first alone."""
        return self.view.begins

    @property
    def trainings(self) -> dict[int, int]:
        """Training → the steps before it, where a script trains again in the same process."""
        return self.view.trainings

    @property
    def bad_step(self) -> tuple[int, int] | None:
        """(step, rank) of the first loss that was not finite."""
        return self.view.bad_step

    def progress(self) -> Progress:
        """How far the run is."""
        return self.view.progress()

    def first_error(self) -> RankView | None:
        """The rank that failed first, by its own word."""
        return self.view.first_error()

    def warnings(self) -> list[str]:
        """What the ranks warned of, each once."""
        return self.view.warnings()

    def forewarned(self) -> list[str]:
        """What the launch warned of."""
        return list(self.plan.warnings) if self.plan is not None else []

    def failed_before(self) -> list[AttemptRecord]:
        """Attempts before the present one that nobody asked to end."""
        state = self.state
        return [a for a in state.attempts if a.outcome in ("failed", "lost")
                and a.number < state.attempt] if state is not None else []

    async def wait_for(self, so: Callable[[RunStore], bool], seconds: float = 10.0) -> None:
        """Wait until `so` of this store is true. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not so(self):
                self._changed.clear()
                await self._changed.wait()

    # --- reading --------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read for ever; the owner cancels."""
        looked = -math.inf
        while True:
            now = time.monotonic()
            if now - looked >= 1.0 or not self.ranks:
                looked = now
                self._take_look(await asyncio.to_thread(self._look))
            fresh = await asyncio.to_thread(self._reader.read, BATCH)
            if fresh:
                self.fold(fresh)
                await asyncio.sleep(0)
            if not self.caught_up:
                self.read_share = self._reader.share()
            if fresh:
                self._tell()
                continue
            if not self.caught_up:
                self.caught_up = True
                self._tell()
            live = self.state is None or self.state.live
            await asyncio.sleep(LIVE_EVERY if live else DONE_EVERY)

    async def look_now(self) -> None:
        """Read the state without waiting for the next look."""
        self._take_look(await asyncio.to_thread(self._look))

    def _look(self) -> Look:
        """In a thread."""
        return look(self.run, self.plan, self.state.attempt if self.state else None,
                    list(self.ranks.values()))

    def _take_look(self, seen: Look) -> None:
        beside = (seen.left, seen.launchers, seen.suspended, seen.unheard)
        if seen.state != self.state or seen.plan is not self.plan \
                or beside != (self.left, self.launchers, self.suspended, self.unheard):
            self.left, self.launchers, self.suspended, self.unheard = beside
            self.state, self.plan = seen.state, seen.plan or self.plan
            self._forget_attempt()
            self._tell()
        if any(rank not in self.ranks for rank in seen.ranks):
            self._reader.add(seen.ranks)
            self.view.add(seen.ranks)
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()

    # --- folding --------------------------------------------------------------------------------

    def fold(self, fresh: Iterable[tuple[int, list[Event]]]) -> None:
        """Take in events, in order for each rank."""
        for rank, events in fresh:
            for event in events:
                view = self.view.fold(rank, event)
                if isinstance(event, schema.Step):
                    self._step(rank, event)
                elif isinstance(event, schema.Memory):
                    self._memory(event, view)
                elif isinstance(event, schema.Start):
                    for series in (self.loss, *(o.loss for o in self.others.values())):
                        series.begin(rank, view.attempt)
        self._forget_attempt()

    def _forget_attempt(self) -> None:
        """In a new attempt, how a rank's last one ended says nothing about it now."""
        if self.state is not None and self.state.live:
            self.view.begin_attempt(self.state.attempt)

    def _step(self, rank: int, event: schema.Step) -> None:
        for index, other in (event.others or {}).items():
            found = self.others.get(index)
            if found is None:
                found = self.others[index] = OtherOptimizer((other.name or str(index))[:40])
                self.others = dict(sorted(self.others.items()))
            _add(found.loss, rank, other)
        if event.n != 0:  # 0: only the other optimizers stepped
            _add(self.loss, rank, event)

    def _memory(self, event: schema.Memory, view: RankView) -> None:
        began = self.began
        if began is not None and event.t < began - 60:  # before a resume, perhaps days ago
            return
        second = max(int(event.t - (event.t if began is None else began)), 0)
        for values, into in ((view.gpu_allocated, self.memory.allocated),
                             (view.gpu_peak, self.memory.peak)):
            for i, value in enumerate(values):
                if value is not None:
                    into.setdefault((view.rank, i), Series()).add(second, float(value))
        if view.rss is not None:
            self.memory.rss.setdefault(view.rank, Series()).add(second, float(view.rss))

    @property
    def began(self) -> float | None:
        """Unix seconds. Kept from the first look on, so that curves don't shift."""
        if self._began is None and self.state is not None:
            self._began = self.state.started or self.state.created
        return self._began


def _add(series: RankSeries, rank: int, event: schema.Step | schema.Other) -> None:
    """Add an event's losses to `series`."""
    if event.losses:
        series.add(rank, event.step, event.losses)
    elif event.loss is not None:
        series.put(rank, event.step, event.loss, event.loss_min, event.loss_max)
