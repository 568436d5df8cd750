"""The runs on disk, as the runs pane shows them. Blocks: called in a thread, one call at a time.

Live runs are followed in bounded batches. For a finished run, the start and the end of its files
are read once, and again only when its state changes. Older runs are read little by little, so that
a thousand of them don't delay the list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_engine.common import places, procs
from gpu_engine.events import hang
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import both_ends
from gpu_engine.events.schema import Event, Step
from gpu_engine.events.view import RunView
from gpu_engine.launch.taking_up import take_up_all
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs.folder import Run
from gpu_engine.runs.follow import Follower
from gpu_panel.common import errors
from gpu_panel.launch.devices import row_keys

NEWEST = 50
"""The newest runs, which are checked at each refresh, as the live ones are."""
SPELL = 0.2
"""Seconds that a refresh spends on reading older runs for the first time."""
_RECHECKED = 20
"""Older runs that are checked for changes at each refresh."""
_MOST_RANKS = 16
"""Ranks of a finished run whose files are read."""
_KEPT = 256
"""The most points of a loss curve in the list."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """What the list knows about one run."""

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
    """(key of the device's row, rank) of a live run."""
    pids: tuple[tuple[int, int], ...] = ()
    """(pid, rank) of a live run's ranks on this machine."""
    still: str | None = None
    """A sentence about ranks that stand still; None if none do."""
    job: bool = False
    """Whether it is a job of Slurm that can be asked about: its reason is no bad news."""
    odd: str | None = None
    """A sentence about what is wrong with its folder; None if nothing is."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run.id


class LossHistory:
    """A loss curve with a bounded number of points; its resolution halves when it gets too long."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._every = 1
        self._seen = 0

    def take(self, event: Event) -> None:
        """Add the loss of a step event; other events are ignored."""
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
    """Reads the runs and remembers what it has read between refreshes."""

    def __init__(self) -> None:
        self._listed: list[Run] = []
        self._older: list[Run] = []
        self._turn = 0
        """The index of the older run that is checked for changes next."""
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._finished: dict[str, tuple[object, RunLine]] = {}
        self._followed: dict[str, tuple[Follower, LossHistory]] = {}
        self._plans: dict[str, LaunchPlan] = {}
        self._odd: dict[str, str | None] = {}
        self._recorded: set[str] = set()
        """Ids of runs whose failure to be shown is in the log already."""

    def refresh(self) -> tuple[list[RunLine], int]:
        """Every run read so far, live ones first, then the newest; and the number of older ones
        that are still to be read."""
        self._list()
        lines = [line for run in self._listed if (line := self._look_safely(run)) is not None]
        shown = {line.id for line in lines if line.live}
        older, unread = self._look_back()
        self._followed = {k: v for k, v in self._followed.items() if k in shown}
        return sorted((*lines, *older), key=lambda line: not line.live), unread

    def look_anew(self) -> None:
        """List the folder again at the next refresh, as a resume does not change its time stamp."""
        self._folder_stamp = None

    def _look_back(self) -> tuple[list[RunLine], int]:
        """The older runs read so far, and the number of those that are not read yet."""
        older = self._older
        for at in range(self._turn, min(self._turn + _RECHECKED, len(older))):
            if older[at].id in self._finished:
                self._look(older[at])
        self._turn = self._turn + _RECHECKED if self._turn + _RECHECKED < len(older) else 0
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
        """List the folder if it has changed, and every 30 s, as a change within one tick of the
        file system's clock is not seen. Runs on other machines that nobody mirrors any more are
        then mirrored again."""
        try:
            stamp = places.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = None
        now = time.monotonic()
        if stamp == self._folder_stamp and now - self._listed_at < 30:
            return
        self._folder_stamp, self._listed_at = stamp, now
        take_up_all()
        every = runs.all_runs()
        # A live run stays in the list, however many newer ones there are.
        live = [run for run in every[NEWEST:] if run.supervised() or _waits(run)]
        self._listed = every[:NEWEST] + live
        near, there = {run.id for run in self._listed}, {run.id for run in every}
        self._older = [run for run in every if run.id not in near]
        self._finished = {k: v for k, v in self._finished.items() if k in there}

    def _look_safely(self, run: Run) -> RunLine | None:
        """Read a run. If that fails for any reason, show it as unreadable, so that one bad run
        does not hide all others."""
        try:
            return self._look(run)
        except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
            where = errors.log_path()
            if run.id not in self._recorded:
                self._recorded.add(run.id)
                errors.record(err)
            return RunLine(run, run.id, "", 1, "unreadable", False, 0.0,
                           reason=f"can't be shown: {type(err).__name__}; see {where}")

    def _look(self, run: Run) -> RunLine | None:
        try:
            stamp = jobs.stamp(run.path)
        except OSError:
            stamp = None
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
        self._plans.pop(run.id, None)  # a thousand plans would take much memory
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
        # The devices and processes of a job may be another machine's.
        here = state.boot in (None, procs.boot_id())
        job = jobs.read(run.path)
        return RunLine(run, state.name, plan.mode if plan is not None else "",
                       plan.replicas if plan is not None else 1,
                       state.state, state.live,
                       state.created, state.ended, state.reason, started=state.started,
                       devices=_devices(plan) if state.live and here else (),
                       job=job is not None and job.doubt is None, odd=self._odd[run.id])

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
                     if view.pid is not None and view.node in (None, here)
                     and not (plan is not None and plan.on_hosts))
        line = replace(line, step=now.step, total=now.total_steps, loss=now.loss,
                       history=tuple(history.points), pids=pids)
        if line.state == "running" and (still := hang.stalled(follower.ranks.values(),
                                                              time.time())):
            unheard = disk_room.silence(line.run.path) if still[0].is_silent else None
            return replace(line, still=unheard or hang.describe(still))
        return replace(line, samples_per_s=now.samples_per_s, steps_per_s=now.steps_per_s,
                       seconds_left=now.seconds_left)


def _waits(run: Run) -> bool:
    """Whether it is a job of Slurm that has not ended, which nothing here holds."""
    job = jobs.read(run.path)
    return job is not None and not job.over


def _with_tail(line: RunLine) -> RunLine:
    """A finished run with its last figures, from the first and the last part of its files."""
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
    # The start of a long file is out of date if a resume has asked for more steps.
    total = _planned(line.run.plan(), view.ranks.values()) or end.total_steps
    return replace(line, step=end.step, total=total, loss=end.loss,
                   history=tuple(history.points))


def _planned(plan: LaunchPlan | None, views: Iterable[RankView]) -> int | None:
    """The number of steps that the last attempt was to reach; None if that is unknown."""
    if plan is None or plan.spec.task.use is None:
        return None
    train = plan.spec.train
    if train.steps is not None:
        return train.steps
    each = next((v.steps_per_epoch for v in views if v.steps_per_epoch), None)
    return each * train.epochs if each and train.epochs else None


def _devices(plan: LaunchPlan | None) -> tuple[tuple[str, int], ...]:
    """(key, rank) of all devices that the ranks use, here and on hosts: see `row_keys`."""
    return tuple((row_keys.of(r.host, d.id), r.rank)
                 for r in (plan.ranks if plan is not None else ()) for d in r.devices)
