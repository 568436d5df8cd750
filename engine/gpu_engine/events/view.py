"""What the events of a run say about it so far. No other code interprets events.

`RunView.fold` is pure and serves live and finished runs alike: the supervisor, the command line,
the list of runs and the run screen all work from the views here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpu_engine.events import schema
from gpu_engine.events.rank_view import GPU_MEMORY, RankView
from gpu_engine.events.schema import Event


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a whole run. If several processes train as one rank, the first counts."""

    step: int | None
    """The step of the slowest rank, counted over all its trainings."""
    total_steps: int | None
    loss: float | None
    """The mean of the ranks' latest losses."""
    samples_per_s: float | None
    """The sum over the ranks."""
    steps_per_s: float | None
    """The rate of the slowest rank."""
    seconds_left: float | None
    trainings: int = 1
    """How many trainings, one after the other, these steps belong to."""

    @property
    def share(self) -> float | None:
        """The share of all steps that is done, 0 to 1; None if their number is not known."""
        if self.step is None or not self.total_steps:
            return None
        return min(self.step / self.total_steps, 1.0)


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """The last checkpoint that was written."""

    step: int
    at: float
    """Unix seconds."""
    path: str | None
    """Relative to the run folder."""
    size: int | None
    """Bytes."""


@dataclass(slots=True)
class RunView:
    """The latest that is known about a run and each of its ranks."""

    ranks: dict[int, RankView] = field(default_factory=dict)
    """The view of each rank, by rank, in order."""
    attempt: int = 1
    """The latest attempt that a rank has begun."""
    begins: dict[int, int] = field(default_factory=dict)
    """The first step of each attempt after the first."""
    trainings: dict[int, int] = field(default_factory=dict)
    """How many steps came before each training after the first, if a script trains several times
    in the same process."""
    saved: SavedCheckpoint | None = None
    evaluations: list[tuple[int | None, dict[str, float]]] = field(default_factory=list)
    """(step, values by name) of the last few evaluations, oldest first."""
    bad_step: tuple[int, int] | None = None
    """(step, rank) of the first loss of this attempt that was not finite."""
    told: dict[str, tuple[int, schema.Warning]] = field(default_factory=dict)
    """What ranks of this attempt have told about the run, by its code: (rank, warning)."""

    def add(self, ranks: Iterable[int]) -> None:
        """Add ranks that belong to the run, even before their first event."""
        new = [rank for rank in ranks if rank not in self.ranks]
        if new:
            self.ranks = dict(sorted((self.ranks | {r: RankView(r) for r in new}).items()))

    def fold(self, rank: int, event: Event) -> RankView:
        """Update the view by the next event of `rank`, in the order of its file. Returns the
        rank's view."""
        return self.fold_alike(rank, (event,))

    def fold_alike(self, rank: int, events: Sequence[Event]) -> RankView:
        """The same for the next events of `rank`, all of one kind."""
        view = self.ranks.get(rank)
        if view is None:
            self.add((rank,))
            view = self.ranks[rank]
        latest = max(event.t for event in events)
        if not isinstance(events[0], schema.Quiet):
            view.quiet = None
            view.beat = max(latest, view.beat or latest)
        FOLD[type(events[0])](self, view, events)
        return view

    def begin_attempt(self, number: int) -> None:
        """Note that the run is in attempt `number`, before its ranks have said so themselves."""
        if number > self.attempt:
            self._new_attempt(number)
        for view in self.ranks.values():
            if view.attempt < number and view.beat is not None:
                view.forget_attempt()

    def _new_attempt(self, number: int) -> None:
        self.attempt, self.bad_step = number, None
        self.told.clear()

    def progress(self) -> Progress:
        """The progress of all ranks together."""
        views = [v for v in self._present() if v.process is None]
        steps = [v.step for v in views if v.step is not None]
        step = min(steps) if steps else None
        total = next((v.total_steps for v in views if v.total_steps), None)
        losses = [v.loss for v in views if v.loss is not None]
        rates = [v.samples_per_s for v in views if v.samples_per_s is not None]
        pace = [v.steps_per_s for v in views if v.step_times and v.steps_per_s]
        slowest = min(pace) if pace else None
        left = max(total - step, 0) / slowest if slowest and total and step is not None else None
        return Progress(step, total, sum(losses) / len(losses) if losses else None,
                        sum(rates) if rates else None, slowest, left,
                        max((v.training or 1 for v in views), default=1))

    @property
    def is_of_latest(self) -> bool:
        """Whether how far it is was said by the latest attempt: until then it is how far the one
        before got."""
        return any(v.attempt == self.attempt and (v.stepped or v.step in (None, v.first_step))
                   for v in self.ranks.values())

    def _present(self) -> list[RankView]:
        """The ranks that have begun the latest attempt: it may have fewer than one before."""
        views = list(self.ranks.values())
        return [v for v in views if v.attempt == self.attempt] or views

    def first_error(self) -> RankView | None:
        """The rank whose error event is the earliest; None if there is none."""
        failed = [(v.error.t, v.rank) for v in self._present() if v.error is not None]
        return self.ranks[min(failed)[1]] if failed else None

    def warnings(self) -> list[str]:
        """The ranks' warnings, each once."""
        return list(dict.fromkeys(w for v in self.ranks.values() for w in v.warnings))


# --- one function a kind ------------------------------------------------------------------------

E = TypeVar("E", bound=Event)
Fold = Callable[[RunView, RankView, E], None]
"""What an event of one kind changes of the run's view and of the view of its rank."""

FOLD: dict[type[Event], Callable[[RunView, RankView, Sequence[Any]], None]] = {}
"""The function that events of each kind, which follow each other, are folded with. A kind without
one raises KeyError."""


def folds(kind: type[E]) -> Callable[[Fold[E]], Fold[E]]:
    """Decorator: enter the function into `FOLD` for events of this `kind`."""
    def enter(function: Fold[E]) -> Fold[E]:
        def each(run: RunView, rank: RankView, events: Sequence[E]) -> None:
            for event in events:
                function(run, rank, event)

        FOLD[kind] = each
        return function

    return enter


@folds(schema.Start)
def _start(run: RunView, rank: RankView, event: schema.Start) -> None:
    _take_over(rank, event, "pid", "started", "node", "local_rank", "as_rank", "process")
    rank.attempt, rank.devices, rank.began = event.attempt or 1, list(event.device), event.t
    rank.error = rank.outcome = rank.written = rank.stands = None
    rank.ended = rank.stepped = False
    rank.exit = None
    rank.training = rank.training_from = rank.training_name = None
    rank.step_times.clear()
    rank.spans.clear()
    if rank.attempt > run.attempt:
        run._new_attempt(rank.attempt)


@folds(schema.Training)
def _training(run: RunView, rank: RankView, event: schema.Training) -> None:
    rank.training, rank.training_from = event.number, event.step
    rank.training_name = event.name
    if rank.process is None:
        run.trainings.setdefault(event.number, event.step)


@folds(schema.Schedule)
def _schedule(run: RunView, rank: RankView, event: schema.Schedule) -> None:
    _take_over(rank, event, "total_steps", "steps_per_epoch", "epochs", "examples", "dropped",
               "first_step")
    if rank.step is not None and rank.step > rank.first_step:
        # The attempt before got further than the checkpoint from which this one continues.
        rank.step, rank.loss = rank.first_step, None


def _steps(run: RunView, rank: RankView, events: Sequence[schema.Step]) -> None:
    """Many at once, as there are millions of them: of most facts only the last counts."""
    rank.stepped, rank.at_step, rank.skipped = True, events[-1].step, events[-1].skipped
    rank.metrics.update((f"loss[{index}]", loss) for event in events if event.others
                        for index, other in event.others.items()
                        if (loss := last_loss(other)) is not None)
    norm = next((e.grad_norm for e in reversed(events) if e.grad_norm is not None), None)
    if norm is not None:
        rank.metrics["grad_norm"] = norm
    events = [event for event in events if event.n]  # 0: only other optimizers have stepped
    if not events:
        return
    last = events[-1]
    if rank.stands is not None and not rank.stands.works:
        rank.stood = max(rank.stood, events[0].t - rank.stands.since)
    rank.step, rank.epoch, rank.stands = last.step, last.epoch, None
    rank.loss = next((loss for e in reversed(events) if (loss := last_loss(e)) is not None),
                     rank.loss)
    rank.lr, rank.samples_per_s, rank.data_wait = last.lr, last.samples_per_s, last.data_wait
    rank.step_times.extend((event.t, event.step) for event in events)
    if rank.attempt > 1:
        run.begins.setdefault(rank.attempt, max(events[0].step - events[0].n + 1, 0))
    if rank.attempt >= run.attempt:
        bad = next((step for step in map(_first_bad, events) if step is not None), None)
        if bad is not None and (run.bad_step is None or bad < run.bad_step[0]):
            run.bad_step = (bad, rank.rank)


FOLD[schema.Step] = _steps


@folds(schema.StepTime)
def _step_time(run: RunView, rank: RankView, event: schema.StepTime) -> None:
    rank.spent((event,))


@folds(schema.Memory)
def _memory(run: RunView, rank: RankView, event: schema.Memory) -> None:
    _take_over(rank, event, "rss", "rss_peak", *GPU_MEMORY)


@folds(schema.Devices)
def _devices(run: RunView, rank: RankView, event: schema.Devices) -> None:
    """Nothing: these lines are in a file of their own, and say nothing about a rank."""


@folds(schema.Metric)
def _metric(run: RunView, rank: RankView, event: schema.Metric) -> None:
    rank.metrics.update(_known(event.values))
    if rank.step is None and event.step is not None:  # a script that says its steps, and shows none
        rank.at_step = max(rank.at_step or 0, event.step)


@folds(schema.Eval)
def _eval(run: RunView, rank: RankView, event: schema.Eval) -> None:
    values = _known(event.values)
    rank.evaluations.update(values)
    if values:
        run.evaluations.append((event.step, values))
        del run.evaluations[:-20]


@folds(schema.Checkpoint)
def _checkpoint(run: RunView, rank: RankView, event: schema.Checkpoint) -> None:
    rank.checkpoint, rank.checkpoint_step = event.path, event.step
    if run.saved is None or event.t >= run.saved.at:
        run.saved = SavedCheckpoint(event.step, event.t, event.path, event.bytes)


@folds(schema.Phase)
def _phase(run: RunView, rank: RankView, event: schema.Phase) -> None:
    rank.phase, rank.phase_since = event.phase, event.since
    if event.step is not None:
        rank.at_step = event.step
    if (event.done, event.detail) != (rank.written, rank.detail):
        rank.progressed = event.t
    rank.written, rank.to_write, rank.detail = event.done, event.total, event.detail


@folds(schema.Stands)
def _stands(run: RunView, rank: RankView, event: schema.Stands) -> None:
    rank.stands = event


@folds(schema.Quiet)
def _quiet(run: RunView, rank: RankView, event: schema.Quiet) -> None:
    rank.quiet = event.process


@folds(schema.Trace)
def _trace(run: RunView, rank: RankView, event: schema.Trace) -> None:
    rank.trace = event


@folds(schema.Warning)
def _warning(run: RunView, rank: RankView, event: schema.Warning) -> None:
    if event.code is not None:
        run.told.setdefault(event.code, (rank.rank, event))
        return
    rank.warnings.append(event.message)
    del rank.warnings[:-50]


@folds(schema.Error)
def _error(run: RunView, rank: RankView, event: schema.Error) -> None:
    if rank.error is None:  # the first is the cause, later ones follow from it
        rank.error = event


@folds(schema.End)
def _end(run: RunView, rank: RankView, event: schema.End) -> None:
    rank.ended |= event.steps is not None  # else it is the supervisor's
    rank.outcome, rank.phase = event.outcome, "done"
    if event.steps is not None:
        rank.exit = event.exit


def last_loss(event: schema.Step | schema.Other) -> float | None:
    """The loss of the event's last step; if only their mean is known, the mean."""
    if event.losses:
        return event.losses[-1]
    return event.loss if event.loss_last is None else event.loss_last


Point = tuple[int, float, float, float, float]
"""Step (-1: none), Unix seconds, value; the least and the greatest of what that is the mean of."""


def points_of(event: schema.Step | schema.Other, t: float, began: float | None = None
              ) -> list[Point]:
    """The losses of an event that was written at `t`: of each step, where they are known, spread
    evenly over the time since `began`; else one, the mean of all. Unix seconds."""
    if many := len(event.losses):
        first, began = event.step - many, t if began is None else min(began, t)
        return [(first + i, began + (t - began) * i / many, loss, loss, loss)
                for i, loss in enumerate(event.losses, 1)]
    if (mean := event.loss) is None:
        return []
    return [(event.step, t, mean, mean if event.loss_min is None else event.loss_min,
             mean if event.loss_max is None else event.loss_max)]


def _first_bad(event: schema.Step) -> int | None:
    """The first of the event's steps with a loss that is not finite; None if there is none. If the
    losses are not listed one by one, the event's last step stands for it."""
    if event.losses:
        if math.isfinite(sum(event.losses)):  # nearly always
            return None
        first = event.step - len(event.losses) + 1
        return next((max(first + i, 0) for i, loss in enumerate(event.losses)
                     if not math.isfinite(loss)), None)
    told = (event.loss, event.loss_min, event.loss_max)
    return event.step if any(v is not None and not math.isfinite(v) for v in told) else None


def _take_over(rank: RankView, event: Event, *names: str) -> None:
    """Take these fields, which both have, from the event."""
    for name in names:
        setattr(rank, name, getattr(event, name))


def _known(values: schema.Named) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
