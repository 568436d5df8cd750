"""The runs on disk as the runs pane shows them. Blocks: called in a thread, never two at once.

Live runs are followed in bounded batches; of a finished one the ends of its files are read
once, and again only when its state changes. Older ones are read little by little, so that
a thousand of them keep nobody waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_engine.common import places
from gpu_engine.events import hang
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import both_ends
from gpu_engine.events.schema import Event, Step
from gpu_engine.events.view import RunView
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs import folder as runs
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_panel.common import errors

NEWEST = 50
"""Runs that are looked at each time, beside the live ones."""
SPELL = 0.2
"""Seconds a look spends on older runs that were not read before."""
_AGAIN = 20
"""Older runs that are looked at once more each time."""
_MOST_RANKS = 16
_KEPT = 256


@dataclass(frozen=True, slots=True)
class RunLine:
    """What is known of one run."""

    run: Run
    name: str
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
    steps_per_s: float | None = None
    seconds_left: float | None = None
    started: float | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """(device id, rank) of a live run."""
    pids: tuple[tuple[int, int], ...] = ()
    """(pid, rank) of a live run's ranks on this machine."""
    still: str | None = None
    """Which of its ranks stand still, in words, where some do."""
    odd: str | None = None
    """What of its folder can't be read, one sentence."""

    @property
    def id(self) -> str:
        return self.run.id


class LossHistory:
    """A loss curve in few points: twice as coarse whenever it gets too long."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._every = 1
        self._seen = 0

    def take(self, event: Event) -> None:
        """Add the loss of a step; other events have none."""
        if isinstance(event, Step) and event.loss is not None:
            self.add(event.loss)

    def add(self, value: float) -> None:
        """Add one loss."""
        self._seen += 1
        if self._seen % self._every == 0:
            self.points.append(value)
        if len(self.points) > _KEPT:
            self.points = self.points[1::2]
            self._every *= 2


class RunsFeed:
    """Keeps what was read between looks."""

    def __init__(self) -> None:
        self._listed: list[Run] = []
        self._older: list[Run] = []
        self._turn = 0
        """Which of the older ones is looked at again next."""
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._finished: dict[str, tuple[int, RunLine]] = {}
        self._followed: dict[str, tuple[Follower, LossHistory]] = {}
        self._plans: dict[str, LaunchPlan] = {}
        self._odd: dict[str, str | None] = {}
        self._told: set[str] = set()

    def refresh(self) -> tuple[list[RunLine], int]:
        """Every run that was read so far, live ones first, then the newest; and how many older
        ones are still to be read."""
        self._list()
        lines = [line for run in self._listed if (line := self._look_safely(run)) is not None]
        shown = {line.id for line in lines if line.live}
        older, unread = self._look_back()
        self._followed = {k: v for k, v in self._followed.items() if k in shown}
        return sorted((*lines, *older), key=lambda line: not line.live), unread

    def look_anew(self) -> None:
        """List the folder again at the next look: a resume changes nothing in it."""
        self._folder_stamp = None

    def _look_back(self) -> tuple[list[RunLine], int]:
        """The older runs, as far as they were read, and how many were not."""
        older = self._older
        for at in range(self._turn, min(self._turn + _AGAIN, len(older))):
            if older[at].id in self._finished:
                self._look(older[at])
        self._turn = self._turn + _AGAIN if self._turn + _AGAIN < len(older) else 0
        end = time.monotonic() + SPELL
        lines: list[RunLine] = []
        unread = 0
        for run in older:
            known = self._finished.get(run.id)
            if known is not None:
                lines.append(known[1])
            elif time.monotonic() > end:
                unread += 1
            elif (line := self._look(run)) is not None:
                lines.append(line)
        return lines, unread

    def _list(self) -> None:
        """List the folder when it has changed; a run that was renamed within a tick, soon."""
        try:
            stamp = places.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = None
        now = time.monotonic()
        if stamp == self._folder_stamp and now - self._listed_at < 30:
            return
        self._folder_stamp, self._listed_at = stamp, now
        every = runs.all_runs()
        # One that was started long ago and still runs is not to be lost behind newer ones.
        live = [run for run in every[NEWEST:] if run.supervised()]
        self._listed = every[:NEWEST] + live
        near, there = {run.id for run in self._listed}, {run.id for run in every}
        self._older = [run for run in every if run.id not in near]
        self._finished = {k: v for k, v in self._finished.items() if k in there}

    def _look_safely(self, run: Run) -> RunLine | None:
        """One run that can't be shown, for whatever reason, must not hide all the others."""
        try:
            return self._look(run)
        except Exception as err:  # noqa: BLE001  said in its line, and the whole of it in the log
            where = errors.log_path()
            if run.id not in self._told:
                self._told.add(run.id)
                errors.record(err)
            return RunLine(run, run.id, "", 1, "unreadable", False, 0.0,
                           reason=f"can't be shown: {type(err).__name__}; see {where}")

    def _look(self, run: Run) -> RunLine | None:
        try:
            stamp = (run.path / "state.json").stat().st_mtime_ns
        except OSError:
            stamp = 0
            if not run.path.is_dir():
                return None
        known = self._finished.get(run.id)
        if known is not None and known[0] == stamp:
            return known[1]
        state = run.state()
        line = self._line(run, state)
        if state.live:
            return self._live(line)
        self._followed.pop(run.id, None)
        self._plans.pop(run.id, None)  # a thousand of them are much
        line = _with_tail(line)
        self._finished[run.id] = (stamp, line)
        return line

    def _line(self, run: Run, state: runs.State) -> RunLine:
        plan = self._plans.get(run.id)
        if plan is None:
            plan = run.plan()
            if plan is not None:
                self._plans[run.id] = plan
        if not state.live or run.id not in self._odd:
            self._odd[run.id] = next(iter(run.odd()), None)
        return RunLine(run, state.name, plan.mode if plan is not None else "",
                       plan.replicas if plan is not None else 1,
                       state.state, state.live,
                       state.created, state.ended, state.reason, started=state.started,
                       devices=_devices(plan) if state.live else (), odd=self._odd[run.id])

    def _live(self, line: RunLine) -> RunLine:
        if line.id not in self._followed:
            self._followed[line.id] = (Follower(line.run), LossHistory())
        follower, history = self._followed[line.id]
        for rank, event in follower.poll(budget=0.05):
            if rank == min(follower.ranks):
                history.take(event)
        now = follower.progress()
        plan = self._plans.get(line.id)
        here = plan.node_rank if plan is not None else 0
        pids = tuple((view.pid, rank) for rank, view in follower.ranks.items()
                     if view.pid is not None and view.node in (None, here))
        line = replace(line, step=now.step, total=now.total_steps, loss=now.loss,
                       history=tuple(history.points), pids=pids)
        if line.state == "running" and (still := hang.stalled(follower.ranks.values(),
                                                              time.time())):
            unheard = disk_room.silence(line.run.path) if still[0].is_silent else None
            return replace(line, still=unheard or hang.describe(still))
        return replace(line, samples_per_s=now.samples_per_s, steps_per_s=now.steps_per_s,
                       seconds_left=now.seconds_left)


def _with_tail(line: RunLine) -> RunLine:
    """The end of a finished run, from the first and last pieces of its files."""
    view = RunView()
    history = LossHistory()
    ranks = line.run.ranks()[:_MOST_RANKS]
    view.add(ranks)
    for rank in ranks:
        for event in both_ends(line.run.events(rank)):
            view.fold(rank, event)
            if rank == ranks[0]:
                history.take(event)
    end = view.progress()
    # What was said at the beginning of a long file holds no longer where a resume asked for more.
    total = _planned(line.run.plan(), view.ranks.values()) or end.total_steps
    return replace(line, step=end.step, total=total, loss=end.loss,
                   history=tuple(history.points))


def _planned(plan: LaunchPlan | None, views: Iterable[RankView]) -> int | None:
    """Steps in all, as the last attempt was asked for; None where that can't be told."""
    if plan is None or plan.spec.task.use is None:
        return None
    train = plan.spec.train
    if train.steps is not None:
        return train.steps
    each = next((v.steps_per_epoch for v in views if v.steps_per_epoch), None)
    return each * train.epochs if each and train.epochs else None


def _devices(plan: LaunchPlan | None) -> tuple[tuple[str, int], ...]:
    """(device, rank) of all that the ranks use."""
    return tuple((d.id, r.rank) for r in (plan.ranks if plan is not None else ())
                 for d in r.devices)
