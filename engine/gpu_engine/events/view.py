"""What the events of a run say about it so far: the only fold.

`RunView.fold` is pure, and serves live and finished runs alike: the supervisor, the command line,
the list of runs and the run screen all show what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_engine.common import units
from gpu_engine.events import schema
from gpu_engine.events.schema import Event


@dataclass(slots=True)
class RankView:
    """The latest that is known of one rank. None: not known (yet)."""

    rank: int
    local_rank: int | None = None
    node: int | None = None
    pid: int | None = None
    started: int | None = None
    """When its process started, in clock ticks since boot."""
    attempt: int = 1
    as_rank: int | None = None
    """The rank that this process trains as, where another process of the run does so too."""
    process: int | None = None
    """Which of those it is, from 2; None: the first, or the only one."""
    training: int | None = None
    """Which training of the process this is, from 2; None: the first, or the only one."""
    training_from: int | None = None
    """Steps before this training."""
    training_name: str | None = None
    """Its optimizer's."""
    devices: list[str] = field(default_factory=list)
    phase: str | None = None
    phase_since: float | None = None
    """Unix seconds."""
    written: int | None = None
    """Bytes of a checkpoint that is being written; None: none is."""
    to_write: int | None = None
    """Bytes that it will have, about."""
    detail: str | None = None
    """What it is busy with or waits for, where its phase says too little."""
    progressed: float | None = None
    """When that last changed, unix seconds."""
    beat: float | None = None
    """When the rank was last heard of, unix seconds."""
    step: int | None = None
    """The last whose loss was told."""
    at_step: int | None = None
    """The last that it told of, in a heartbeat too."""
    stepped: bool = False
    """Whether a step was done in this attempt: what comes before may take as long as it likes."""
    epoch: int | None = None
    loss: float | None = None
    lr: float | None = None
    samples_per_s: float | None = None
    """This rank's own."""
    data_wait: float | None = None
    skipped: int | None = None
    gpu_allocated: list[int | None] = field(default_factory=list)
    gpu_reserved: list[int | None] = field(default_factory=list)
    gpu_peak: list[int | None] = field(default_factory=list)
    """Bytes, one entry a device."""
    rss: int | None = None
    evaluations: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    warnings: list[str] = field(default_factory=list)
    error: schema.Error | None = None
    """The first of this attempt."""
    ended: bool = False
    """Whether it has said that it ends."""
    outcome: str | None = None
    """completed | stopped | failed, once it has ended."""
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    first_step: int = 0
    examples: int | None = None
    dropped: int | None = None
    step_times: list[tuple[float, int]] = field(default_factory=list)
    """(unix seconds, step) of the last step events, oldest first: for the rate."""

    @property
    def busy(self) -> str:
        """What it is doing, in words: "backward", "checkpoint, 1.2 GiB of 4.0 GiB written"; ""
        where nothing was heard."""
        words = [self.phase or ""]
        if self.written is not None:
            of = f" of {units.size(self.to_write)}" if self.to_write is not None else ""
            what = "" if self.phase == "checkpoint" else " of a checkpoint"
            words.append(f"{units.size(self.written)}{of}{what} written")
        if self.detail:
            words.append(self.detail)
        return ", ".join(filter(None, words))

    @property
    def saving(self) -> bool:
        """Whether it writes a checkpoint."""
        return self.phase == "checkpoint" or self.written is not None

    @property
    def label(self) -> str:
        """ "3"; "0.2" for the second process that trains as rank 0."""
        return str(self.rank) if self.process is None else f"{self.as_rank}.{self.process}"

    @property
    def steps_per_s(self) -> float | None:
        """Steps a second over the last half minute or so; None before two reports."""
        recent = [p for p in self.step_times if p[0] >= self.step_times[-1][0] - 30]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    def to_dict(self) -> dict[str, Any]:
        """For scripts: every field but the times of the last steps; the error as its line has
        it."""
        out = asdict(self)
        del out["step_times"]
        if self.error is not None:
            out["error"] = schema.to_dict(self.error)
        return out

    def forget_attempt(self) -> None:
        """A new attempt has begun elsewhere: how this rank's last one ended says nothing about
        it now."""
        self.error = self.outcome = self.phase = self.phase_since = self.beat = None
        self.pid = self.samples_per_s = self.data_wait = self.rss = None
        self.ended = False
        self.gpu_allocated, self.gpu_reserved, self.gpu_peak = [], [], []
        self.step_times.clear()


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


def _training(run: RunView, rank: RankView, event: schema.Training) -> None:
    rank.training, rank.training_from = event.number, event.step
    rank.training_name = event.name
    if rank.process is None:
        run.trainings.setdefault(event.number, event.step)


def _schedule(run: RunView, rank: RankView, event: schema.Schedule) -> None:
    rank.total_steps, rank.steps_per_epoch = event.total_steps, event.steps_per_epoch
    rank.epochs, rank.examples, rank.dropped = event.epochs, event.examples, event.dropped
    rank.first_step = event.first_step
    if rank.step is not None and rank.step > rank.first_step:
        # The attempt before came further than the checkpoint from which this one goes on.
        rank.step, rank.loss = rank.first_step, None


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


def _memory(run: RunView, rank: RankView, event: schema.Memory) -> None:
    rank.gpu_allocated, rank.gpu_reserved = list(event.gpu_allocated), list(event.gpu_reserved)
    rank.gpu_peak, rank.rss = list(event.gpu_peak), event.rss


def _metric(run: RunView, rank: RankView, event: schema.Metric) -> None:
    rank.metrics.update(_known(event.values))


def _eval(run: RunView, rank: RankView, event: schema.Eval) -> None:
    values = _known(event.values)
    rank.evaluations.update(values)
    if values:
        run.evaluations.append((event.step, values))
        del run.evaluations[:-20]


def _checkpoint(run: RunView, rank: RankView, event: schema.Checkpoint) -> None:
    rank.checkpoint, rank.checkpoint_step = event.path, event.step
    if run.saved is None or event.t >= run.saved.at:
        run.saved = SavedCheckpoint(event.step, event.t, event.path, event.bytes)


def _phase(run: RunView, rank: RankView, event: schema.Phase) -> None:
    rank.phase, rank.phase_since = event.phase, event.since
    if event.step is not None:
        rank.at_step = event.step
    if (event.done, event.detail) != (rank.written, rank.detail):
        rank.progressed = event.t
    rank.written, rank.to_write, rank.detail = event.done, event.total, event.detail


def _warning(run: RunView, rank: RankView, event: schema.Warning) -> None:
    rank.warnings.append(event.message)
    del rank.warnings[:-50]


def _error(run: RunView, rank: RankView, event: schema.Error) -> None:
    if rank.error is None:  # the first is the cause, what follows its wake
        rank.error = event


def _end(run: RunView, rank: RankView, event: schema.End) -> None:
    rank.ended, rank.outcome, rank.phase = True, event.outcome, "done"


FOLD: dict[type[Event], Callable[[RunView, RankView, Any], None]] = {
    schema.Start: _start,
    schema.Training: _training,
    schema.Schedule: _schedule,
    schema.Step: _step,
    schema.Memory: _memory,
    schema.Metric: _metric,
    schema.Eval: _eval,
    schema.Checkpoint: _checkpoint,
    schema.Phase: _phase,
    schema.Warning: _warning,
    schema.Error: _error,
    schema.End: _end,
}
"""What each kind of event changes. A kind without a line here raises KeyError."""


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
