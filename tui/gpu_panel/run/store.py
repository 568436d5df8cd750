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
from typing import Any

from gpu_engine.events.schema import KINDS, Tail, number
from gpu_engine.events.view import Progress, RankView, progress
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.folder import AttemptRecord, Run, State
from gpu_panel.charts.series import RankSeries, Series
from gpu_panel.run import look as run_look

BATCH = 0.02
"""Seconds of reading before the loop has its turn."""
PIECE = 1 << 16
"""Bytes read of one file before the next has its turn."""
LIVE_EVERY, DONE_EVERY = 0.25, 2.0
"""Seconds between looks."""

Event = dict[str, Any]


class _Reading(Tail):
    """A tail that says how far it is."""

    def done(self) -> tuple[int, int]:
        """(bytes read, bytes there)."""
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        return min(self._offset, size), size


@dataclass(slots=True)
class MemorySeries:
    """Bytes over whole seconds since the run began, a series a rank and device."""

    allocated: dict[tuple[int, int], Series] = field(default_factory=dict)
    peak: dict[tuple[int, int], Series] = field(default_factory=dict)
    rss: dict[int, Series] = field(default_factory=dict)


@dataclass(slots=True)
class Saved:
    """The last checkpoint."""

    step: int | None
    at: float
    """Unix seconds."""
    path: str | None = None
    size: int | None = None
    """Bytes."""


@dataclass
class Other:
    """An optimizer beside the first: its name, and the losses that it stepped on."""

    name: str
    loss: RankSeries = field(default_factory=RankSeries)


class RunStore:
    """Everything the run screen shows of a run. `version` rises when anything changed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plan: LaunchPlan | None = None
        """None until it was read, and where it can't be."""
        self.state: State | None = None
        """None until it was read once."""
        self.ranks: dict[int, RankView] = {}
        self.loss = RankSeries()
        self.others: dict[int, Other] = {}
        """Optimizers beside the first, by their number, from 1."""
        self.memory = MemorySeries()
        self.begins: dict[int, int] = {}
        """Attempt → the first step it did; attempts after the first alone."""
        self.trainings: dict[int, int] = {}
        """Training → the steps before it, where a script trains again in the same process."""
        self.saved: Saved | None = None
        self.evaluations: list[tuple[int | None, dict[str, float]]] = []
        """(step, name → value), oldest first; the last few."""
        self.bad_step: tuple[int, int] | None = None
        """(step, rank) of the first loss that was not finite."""
        self.launchers: list[str] = []
        """Names of the logs that launchers write, one a node: "node0"."""
        self.suspended: dict[int, int] = {}
        """Rank → pid, of silent ranks that a signal has stopped."""
        self.left: list[int] = []
        """Pids that still run of a lost run."""
        self.misshapen = 0
        self.version = 0
        self.caught_up = False
        """Whether everything that was there has been read once."""
        self.read_share = 0.0
        self._tails: dict[int, _Reading] = {}
        self._began: float | None = None
        self._changed = asyncio.Event()

    # --- looking --------------------------------------------------------------------------------

    @property
    def skipped_lines(self) -> int:
        """Lines that did not parse, or hold what no rank writes."""
        return self.misshapen + sum(t.skipped for t in self._tails.values())

    def progress(self) -> Progress:
        return progress(self.ranks.values())

    def first_error(self) -> RankView | None:
        """The rank that failed first, by its own word."""
        failed = [v for v in self.ranks.values() if v.error is not None]
        return min(failed, key=lambda v: number(v.error.get("t")) or math.inf, default=None)

    def warnings(self) -> list[str]:
        """What the ranks warned of, each once."""
        return list(dict.fromkeys(w for v in self.ranks.values() for w in v.warnings))

    def forewarned(self) -> list[str]:
        """What the launch warned of."""
        return list(self.plan.warnings) if self.plan is not None else []

    def failed_before(self) -> list[AttemptRecord]:
        """Attempts before the present one that nobody asked to end."""
        state = self.state
        return [a for a in state.attempts if a.outcome in ("failed", "lost")
                and a.number < state.attempt] if state is not None else []

    async def wait_for(self, so: Callable[[RunStore], bool], seconds: float = 10.0) -> None:
        """Until `so(self)`. Raises TimeoutError."""
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
            if now - looked >= 1.0 or not self._tails:
                looked = now
                self._look(await asyncio.to_thread(self._ask))
            fresh = await asyncio.to_thread(self._read)
            if fresh:
                self.fold(fresh)
                await asyncio.sleep(0)
            if not self.caught_up:
                self.read_share = self._share()
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
        self._look(await asyncio.to_thread(self._ask))

    def _ask(self) -> run_look.Seen:
        """In a thread."""
        return run_look.look(self.run, self.plan, self.state.attempt if self.state else None,
                             list(self.ranks.values()))

    def _look(self, seen: run_look.Seen) -> None:
        state, ranks, plan = seen.state, seen.ranks, seen.plan
        beside = (seen.left, seen.launchers, seen.suspended)
        if state != self.state or plan is not self.plan \
                or beside != (self.left, self.launchers, self.suspended):
            self.left, self.launchers, self.suspended = beside
            if self.state is not None and state.attempt > self.state.attempt:
                self.bad_step = None
            self.state, self.plan = state, plan or self.plan
            self._forget_before()
            self._tell()
        new = [r for r in ranks if r not in self._tails]
        for rank in new:
            self._tails[rank] = _Reading(self.run.events(rank))
            self.ranks[rank] = RankView(rank)
        if new:
            self._tails = dict(sorted(self._tails.items()))
            self.ranks = dict(sorted(self.ranks.items()))
            self._tell()

    def _read(self) -> list[tuple[int, list[Event]]]:
        """In a thread: what is new, a piece of each file in turn, for `BATCH` seconds."""
        end = time.monotonic() + BATCH
        fresh: list[tuple[int, list[Event]]] = []
        # Who is furthest behind goes first, or with many ranks the last would starve.
        for rank, tail in sorted(self._tails.items(), key=lambda p: p[1].done()[0]):
            try:
                events = tail.read(PIECE)
            except (ValueError, OverflowError):  # a number out of all bounds
                self.misshapen += 1
                continue
            if events:
                fresh.append((rank, events))
            if time.monotonic() > end:
                break
        return fresh

    def _share(self) -> float:
        done = [t.done() for t in self._tails.values()]
        size = sum(s for _, s in done)
        return sum(d for d, _ in done) / size if size else 1.0

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()

    # --- folding --------------------------------------------------------------------------------

    def fold(self, fresh: Iterable[tuple[int, list[Event]]]) -> None:
        """Take in events, in order for each rank."""
        for rank, events in fresh:
            view = self.ranks.setdefault(rank, RankView(rank))
            for event in events:
                if event["kind"] not in KINDS:  # of a newer worker, or not ours
                    continue
                try:
                    view.fold(event)
                    self._take(rank, event, view)
                except (TypeError, ValueError, OverflowError, AttributeError):
                    self.misshapen += 1
        self._forget_before()

    def _forget_before(self) -> None:
        """In a new attempt, how a rank's last one ended says nothing about it now."""
        state = self.state
        if state is None or not state.live:
            return
        for view in self.ranks.values():
            if view.attempt < state.attempt and view.beat is not None:
                view.error = view.outcome = view.phase = view.phase_since = view.beat = None
                view.pid = view.samples_per_s = view.data_wait = view.rss = None
                view.gpu_allocated, view.gpu_reserved, view.gpu_peak = [], [], []
                view.step_times.clear()

    def _take(self, rank: int, event: Event, view: RankView) -> None:
        kind = event["kind"]
        if kind == "step":
            self._step(rank, event, view.attempt)
        elif kind == "memory":
            self._memory(rank, event, view)
        elif kind == "start":
            for series in (self.loss, *(o.loss for o in self.others.values())):
                series.begin(rank, view.attempt)
        elif kind == "training":
            training, step = _whole(event.get("number")), _whole(event.get("step"))
            if training is not None and step is not None and view.process is None:
                self.trainings.setdefault(training, step)
        elif kind == "checkpoint":
            self._checkpoint(event, view)
        elif kind == "eval":
            self._evaluated(event)

    def _step(self, rank: int, event: Event, attempt: int) -> None:
        others = event.get("others")
        for key, other in others.items() if isinstance(others, dict) else ():
            if key.isdecimal() and isinstance(other, dict):
                self._other(rank, int(key), other)
        if event.get("n") != 0:  # 0: only the other optimizers stepped
            last, many = _whole(event.get("step")), _whole(event.get("n"))
            if attempt > 1 and attempt not in self.begins and last is not None:
                self.begins[attempt] = max(last - (many or 1) + 1, 0)
            step = _losses(self.loss, rank, event)
            now = self.state is None or attempt >= self.state.attempt
            if step is not None and now and (self.bad_step is None or step < self.bad_step[0]):
                self.bad_step = (self.loss.ranks[rank].bad_at or step, rank)

    def _other(self, rank: int, index: int, event: Event) -> None:
        """Steps of an optimizer that is not the first, in a person's own script."""
        found = self.others.get(index)
        if found is None:
            found = self.others[index] = Other(str(event.get("name") or index)[:40])
            self.others = dict(sorted(self.others.items()))
        _losses(found.loss, rank, event)

    def _memory(self, rank: int, event: Event, view: RankView) -> None:
        at = number(event.get("t"))
        if at is None or not math.isfinite(at):
            return
        began = self.began
        if began is not None and at < began - 60:  # before a resume, perhaps days ago
            return
        second = max(int(at - (at if began is None else began)), 0)
        for values, into in ((view.gpu_allocated, self.memory.allocated),
                             (view.gpu_peak, self.memory.peak)):
            for i, value in enumerate(values):
                if value is not None:
                    into.setdefault((rank, i), Series()).add(second, float(value))
        if view.rss is not None:
            self.memory.rss.setdefault(rank, Series()).add(second, float(view.rss))

    @property
    def began(self) -> float | None:
        """Unix seconds. Kept from the first look on, so that curves don't shift."""
        if self._began is None and self.state is not None:
            self._began = self.state.started or self.state.created
        return self._began

    def _checkpoint(self, event: Event, view: RankView) -> None:
        at = number(event.get("t")) or 0.0
        if self.saved is None or at >= self.saved.at:
            self.saved = Saved(view.checkpoint_step, at, view.checkpoint,
                               _whole(event.get("bytes")))

    def _evaluated(self, event: Event) -> None:
        values = {k: v for k, raw in event.items() if k not in ("t", "kind", "step")
                  and (v := number(raw)) is not None}
        if values:
            self.evaluations.append((_whole(event.get("step")), values))
            del self.evaluations[:-20]


def _whole(value: Any) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60
    return value if ok else None


def _losses(series: RankSeries, rank: int, event: Event) -> int | None:
    """Add an event's losses to `series`; its step where one of them is not finite."""
    step = _whole(event.get("step"))
    if step is None:
        return None
    losses = event.get("losses")
    if isinstance(losses, list) and losses:
        values = [v for v in map(number, losses) if v is not None]
        series.add(rank, step, values)
        return None if all(map(math.isfinite, values)) else step
    value = number(event.get("loss"))
    if value is None:
        return None
    low, high = number(event.get("loss_min")), number(event.get("loss_max"))
    series.put(rank, step, value, low, high)
    return None if all(math.isfinite(v) for v in (value, low, high) if v is not None) else step
