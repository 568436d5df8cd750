"""One value of one run as curves over steps, over time and over examples, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_engine.events import schema
from gpu_engine.events.schema import Event
from gpu_engine.runs.state import State
from gpu_panel.charts.series import RankSeries, Series

AXES = ("step", "time", "examples")
"""What a curve can be drawn over. Time is in milliseconds since the run began, without the time
between its attempts."""
LOSS = "loss"
MOST_NAMES = 200
"""Names of values that are remembered of a run."""


@dataclass(slots=True)
class _Rank:
    """Where one rank is in its file."""

    attempt: int = 1
    last: float | None = None
    """The time of its last event with steps in this attempt, Unix seconds."""
    batch: int | None = None
    from_step: int = 0
    from_examples: int = 0
    """The step and the number of examples from which on the present batch counts."""

    def examples(self, step: int) -> int | None:
        """The examples that were seen up to a step; None if the batch is not known."""
        if self.batch is None:
            return None
        return max(self.from_examples + (step - self.from_step) * self.batch, 0)

    def has_batch(self, step: int, batch: int) -> None:
        """Note that from `step` on each step has `batch` examples."""
        seen = self.examples(step)
        self.from_examples = step * batch if seen is None else seen
        self.batch, self.from_step = batch, step


class RunCurve:
    """The values of one name, the ranks' mean, of one run."""

    def __init__(self, name: str = LOSS) -> None:
        self.name = name
        self.names: dict[str, None] = {LOSS: None}
        """All values that the events have so far, in the order in which they came."""
        self._steps = RankSeries()
        self._examples = RankSeries()
        self._time = Series()
        self._ranks: dict[int, _Rank] = {}
        self._began: dict[int, float] = {}
        """Attempt → Unix seconds from which its time is counted."""

    def over(self, axis: str) -> Series:
        """The curve over one of `AXES`; over examples it is empty if the batch is not known."""
        return self._time if axis == "time" else (
            self._steps if axis == "step" else self._examples).all

    def learn(self, state: State) -> None:
        """Take in when the attempts began and ended."""
        passed = 0.0
        for attempt in state.attempts:
            self._began[attempt.number] = attempt.started - passed
            if attempt.ended is not None:
                passed += attempt.ended - attempt.started
        if not state.attempts:
            self._began[1] = state.started or state.created

    def take(self, rank: int, event: Event) -> None:
        """Add what an event says, in the order of the rank's file."""
        at = self._ranks.setdefault(rank, _Rank())
        if isinstance(event, schema.Start):
            at.attempt, at.last = event.attempt or 1, None
            self._began.setdefault(at.attempt, event.t)
            for series in (self._steps, self._examples):
                series.begin(rank, at.attempt)
        elif isinstance(event, schema.Schedule):
            if event.batch and event.batch != at.batch:
                at.has_batch(event.first_step, event.batch)
        elif isinstance(event, schema.Step):
            if event.n:
                self._step(rank, at, event)
        elif isinstance(event, schema.Eval):
            self._named(rank, event.t, event.step, event.values, "eval ")
        elif isinstance(event, schema.Metric):
            self._named(rank, event.t, event.step, event.values, "")

    def _step(self, rank: int, at: _Rank, event: schema.Step) -> None:
        values = {"learning rate": event.lr, "samples per second of a rank": event.samples_per_s,
                  "gradient norm": event.grad_norm}
        self._note(values, "")
        before, at.last = at.last, event.t
        if self.name != LOSS:
            value = values.get(self.name)
            if value is not None:
                self._put(rank, event.step, event.t, value)
        elif event.losses:  # spread evenly over the time since the event before
            many = len(event.losses)
            began = event.t if before is None else min(before, event.t)
            for i, loss in enumerate(event.losses, 1):
                self._put(rank, event.step - many + i, began + (event.t - began) * i / many, loss)
        elif event.loss is not None:
            self._put(rank, event.step, event.t, event.loss, event.loss_min, event.loss_max)

    def _named(self, rank: int, t: float, step: int | None, values: Mapping[str, float | None],
               prefix: str) -> None:
        self._note(values, prefix)
        if self.name.startswith(prefix):
            value = values.get(self.name.removeprefix(prefix))
            if value is not None:
                self._put(rank, step, t, value)

    def _note(self, values: Mapping[str, float | None], prefix: str) -> None:
        for name, value in values.items():
            if value is not None and len(self.names) < MOST_NAMES:
                self.names.setdefault(prefix + name)

    def _put(self, rank: int, step: int | None, t: float, value: float, lo: float | None = None,
             hi: float | None = None) -> None:
        at = self._ranks[rank]
        began = self._began.get(at.attempt)
        if began is not None:
            self._time.add(max(int((t - began) * 1000), 0), value, lo, hi)
        if step is None or step < 0:
            return
        self._steps.put(rank, step, value, lo, hi)
        examples = at.examples(step)
        if examples is not None:
            self._examples.put(rank, examples, value, lo, hi)
