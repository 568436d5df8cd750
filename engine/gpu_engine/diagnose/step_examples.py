"""What a step of a task was: its figures on each rank, and which examples it was trained on.

The order of the examples is known from the seed (training/data.py), so nothing has to be recorded
for it. It needs torch to be worked out, which is the caller's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.events.reader import Tail
from gpu_engine.runs import attempts
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

_MOST_EXAMPLES = 1_000_000_000
"""Their order takes 4 bytes each."""


@dataclass(frozen=True)
class RankStep:
    """A step as one rank recorded it."""

    rank: int
    at: schema.Step
    before: schema.Step | None

    def loss(self, step: int) -> float | None:
        """The rank's loss in this step; the mean of several if each was not recorded."""
        if not self.at.losses:
            return self.at.loss
        return self.at.losses[len(self.at.losses) - 1 - (self.at.step - step)]


@dataclass(frozen=True)
class TrainedStep:
    """A step, and where its examples stand in the order of its epoch."""

    step: int
    attempt: int
    epoch: int
    """From 0."""
    offset: int
    """Steps of the epoch before it."""
    examples: int
    """Those of the training data."""
    seed: int
    batch: int
    """Examples in a global batch."""
    replicas: int
    accumulate: int
    world_size: int
    ranks: tuple[RankStep, ...]


def trained_step(run: Run, step: int) -> TrainedStep:
    """Step `step` of a run, as it was last trained. Raises UserError where its examples can't be
    known."""
    plan = run.plan()
    if plan is None or plan.spec.task.command is not None:
        raise UserError(f"run {run.id} runs a command of its own, which reads its data itself: "
                        "which examples are in a step is known of tasks alone")
    found: list[RankStep] = []
    attempt, schedules = 0, {}
    for rank in (r for r in run.ranks() if r < plan.world_size):
        for number, schedule, at in _recorded(run, rank, step):
            found.append(at)
            attempt, schedules = number, schedule
    if not found:
        raise UserError(f"run {run.id} has not recorded step {step}")
    plans = {(s.batch, s.examples) for s in schedules.values()}
    [(batch, examples), *others] = plans or {(None, None)}
    steps = schedules[attempt].steps_per_epoch if attempt in schedules else None
    if not batch or not examples or not steps:
        raise UserError(f"run {run.id} reads a stream: which examples are in a step is not known")
    if examples > _MOST_EXAMPLES:
        raise UserError(f"run {run.id}: {examples:,} examples are too many to work out their order")
    whole = plan.batch.replicas * plan.batch.accumulate * plan.batch.per_gpu
    if others or not batch == plan.batch.global_size == whole <= examples:
        raise UserError(f"run {run.id}: the batch or the data has changed between its attempts, so "
                        "which examples were in a step can't be worked out")
    epoch, offset = divmod(step - 1, steps)
    spec = from_dict(attempts.read_spec(run, attempt))
    return TrainedStep(step, attempt, epoch, offset, examples, spec.train.seed, batch,
                       plan.batch.replicas, plan.batch.accumulate, plan.world_size, tuple(found))


def _recorded(run: Run, rank: int, step: int
              ) -> Iterator[tuple[int, dict[int, schema.Schedule], RankStep]]:
    """The attempt that trained the step last, the schedules up to then, and the rank's record of
    it; nothing if it has none."""
    tail, attempt, before = Tail(run.events(rank)), 1, None
    schedules: dict[int, schema.Schedule] = {}
    last = None
    while events := tail.read():
        for event in events:
            if isinstance(event, schema.Start):
                attempt, before = event.attempt, None
            elif isinstance(event, schema.Schedule):
                schedules[attempt] = event
            elif isinstance(event, schema.Step) and event.n:
                if event.step - event.n < step <= event.step:
                    last = attempt, dict(schedules), RankStep(rank, event, before)
                before = event
    if last is not None:
        yield last
