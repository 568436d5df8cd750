"""What the events of a run say about it so far: the only fold.

`RunView.fold` is pure, and serves live and finished runs alike: the supervisor, the command line,
the list of runs and the run screen all show what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.schema import Event


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a whole run is. Of several processes that train as one rank, the first counts."""

    step: int | None
    """The slowest rank's; of all its trainings together."""
    total_steps: int | None
    loss: float | None
    """Mean over the ranks' latest."""
    samples_per_s: float | None
    """Sum over the ranks."""
    steps_per_s: float | None
    """The slowest rank's."""
    seconds_left: float | None
    trainings: int = 1
    """How many the steps are of, one after the other."""

    @property
    def share(self) -> float | None:
        """Of the steps in all that are done, 0 to 1; None where there is no number of them."""
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
    """The latest that is known of a run, and of each of its ranks."""

    ranks: dict[int, RankView] = field(default_factory=dict)
    """By rank, in order."""
    attempt: int = 1
    """The last that a rank has begun."""
    begins: dict[int, int] = field(default_factory=dict)
    """Attempt → the first step it did; attempts after the first alone."""
    trainings: dict[int, int] = field(default_factory=dict)
    """Training → the steps before it, where a script trains again in the same process."""
    saved: SavedCheckpoint | None = None
    evaluations: list[tuple[int | None, dict[str, float]]] = field(default_factory=list)
    """(step, name → value), oldest first; the last few."""
    bad_step: tuple[int, int] | None = None
    """(step, rank) of the first loss of this attempt that was not finite."""

    def add(self, ranks: Iterable[int]) -> None:
        """These belong to the run, though nothing was heard of them yet."""
        new = [rank for rank in ranks if rank not in self.ranks]
        if new:
            self.ranks = dict(sorted((self.ranks | {r: RankView(r) for r in new}).items()))

    def fold(self, rank: int, event: Event) -> RankView:
        """Take in one event of `rank`, in the order of its file; the rank's view as it is then."""
        view = self.ranks.get(rank)
        if view is None:
            self.add((rank,))
            view = self.ranks[rank]
        if view.beat is None or event.t > view.beat:
            view.beat = event.t
        FOLD[type(event)](self, view, event)
        return view

    def begin_attempt(self, number: int) -> None:
        """The run is in attempt `number`; its ranks may not have said so yet."""
        if number > self.attempt:
            self.attempt, self.bad_step = number, None
        for view in self.ranks.values():
            if view.attempt < number and view.beat is not None:
                view.forget_attempt()

    def progress(self) -> Progress:
        """The ranks summed up."""
        views = [v for v in self.ranks.values() if v.process is None]
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

    def first_error(self) -> RankView | None:
        """The rank that failed first, by its own word."""
        failed = [(v.error.t, v.rank) for v in self.ranks.values() if v.error is not None]
        return self.ranks[min(failed)[1]] if failed else None

    def warnings(self) -> list[str]:
        """What the ranks warned of, each once."""
        return list(dict.fromkeys(w for v in self.ranks.values() for w in v.warnings))


# --- one function a kind ------------------------------------------------------------------------

E = TypeVar("E", bound=Event)
Fold = Callable[[RunView, RankView, E], None]
"""What an event of one kind changes of the run's view and of the view of its rank."""

FOLD: dict[type[Event], Fold[Event]] = {}
"""By kind. One without a function here raises KeyError."""


def folds(kind: type[E]) -> Callable[[Fold[E]], Fold[E]]:
    """Enters a function into `FOLD`."""
    def enter(function: Fold[E]) -> Fold[E]:
        FOLD[kind] = cast("Fold[Event]", function)
        return function

    return enter


@folds(schema.Start)
def _start(run: RunView, rank: RankView, event: schema.Start) -> None:
    rank.attempt, rank.pid, rank.started = event.attempt or 1, event.pid, event.started
    rank.node, rank.local_rank = event.node, event.local_rank
    rank.devices = list(event.device)
    rank.as_rank, rank.process = event.as_rank, event.process
    rank.error = rank.outcome = rank.written = None
    rank.ended = rank.stepped = False
    rank.training = rank.training_from = rank.training_name = None
    rank.step_times.clear()
    if rank.attempt > run.attempt:
        run.attempt, run.bad_step = rank.attempt, None


@folds(schema.Training)
def _training(run: RunView, rank: RankView, event: schema.Training) -> None:
    rank.training, rank.training_from = event.number, event.step
    rank.training_name = event.name
    if rank.process is None:
        run.trainings.setdefault(event.number, event.step)


@folds(schema.Schedule)
def _schedule(run: RunView, rank: RankView, event: schema.Schedule) -> None:
    rank.total_steps, rank.steps_per_epoch = event.total_steps, event.steps_per_epoch
    rank.epochs, rank.examples, rank.dropped = event.epochs, event.examples, event.dropped
    rank.first_step = event.first_step
    if rank.step is not None and rank.step > rank.first_step:
        # The attempt before came further than the checkpoint from which this one goes on.
        rank.step, rank.loss = rank.first_step, None


@folds(schema.Step)
def _step(run: RunView, rank: RankView, event: schema.Step) -> None:
    rank.stepped, rank.at_step = True, event.step
    rank.skipped = event.skipped
    if event.grad_norm is not None:
        rank.metrics["grad_norm"] = event.grad_norm
    for index, other in (event.others or {}).items():
        value = _last_loss(other)
        if value is not None:
            rank.metrics[f"loss[{index}]"] = value
    if event.n == 0:  # of other optimizers alone
        return
    rank.step, rank.epoch = event.step, event.epoch
    rank.loss, rank.lr = _last_loss(event), event.lr
    rank.samples_per_s, rank.data_wait = event.samples_per_s, event.data_wait
    rank.step_times.append((event.t, event.step))
    del rank.step_times[:-100]
    if rank.attempt > 1:
        run.begins.setdefault(rank.attempt, max(event.step - event.n + 1, 0))
    bad = _first_bad(event)
    if bad is not None and rank.attempt >= run.attempt \
            and (run.bad_step is None or bad < run.bad_step[0]):
        run.bad_step = (bad, rank.rank)


@folds(schema.Memory)
def _memory(run: RunView, rank: RankView, event: schema.Memory) -> None:
    rank.gpu_allocated, rank.gpu_reserved = list(event.gpu_allocated), list(event.gpu_reserved)
    rank.gpu_peak, rank.rss = list(event.gpu_peak), event.rss


@folds(schema.Metric)
def _metric(run: RunView, rank: RankView, event: schema.Metric) -> None:
    rank.metrics.update(_known(event.values))


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


@folds(schema.Warning)
def _warning(run: RunView, rank: RankView, event: schema.Warning) -> None:
    rank.warnings.append(event.message)
    del rank.warnings[:-50]


@folds(schema.Error)
def _error(run: RunView, rank: RankView, event: schema.Error) -> None:
    if rank.error is None:  # the first is the cause, what follows its wake
        rank.error = event


@folds(schema.End)
def _end(run: RunView, rank: RankView, event: schema.End) -> None:
    rank.ended, rank.outcome, rank.phase = True, event.outcome, "done"


def _last_loss(event: schema.Step | schema.Other) -> float | None:
    """The loss of the last step that is covered; where that is not told, their mean."""
    if event.losses:
        return event.losses[-1]
    return event.loss if event.loss_last is None else event.loss_last


def _first_bad(event: schema.Step) -> int | None:
    """The first step that is covered whose loss was not finite; where they are not told one by
    one, the last step."""
    if event.losses:
        if math.isfinite(sum(event.losses)):  # nearly always
            return None
        first = event.step - len(event.losses) + 1
        return next((max(first + i, 0) for i, loss in enumerate(event.losses)
                     if not math.isfinite(loss)), None)
    told = (event.loss, event.loss_min, event.loss_max)
    return event.step if any(v is not None and not math.isfinite(v) for v in told) else None


def _known(values: schema.Named) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
