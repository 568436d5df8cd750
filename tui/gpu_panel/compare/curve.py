"""One value of one run as curves over steps, over time and over examples, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import le

from gpu_engine.common.series import Series, rising
from gpu_engine.events import schema
from gpu_engine.events.frequent import EventOrBatch, StepLine
from gpu_engine.events.schema import Event
from gpu_engine.runs.state import State
from gpu_panel.charts.series import RankSeries

_Point = tuple[int, float, float, float | None, float | None]
"""Step, Unix seconds, value; if that is the mean of several, the least and the greatest of them."""
_OF_STEPS = {"learning rate": "lr", "samples per second of a rank": "samples_per_s",
             "gradient norm": "grad_norm"}
"""Names of the values that step events have, and their fields."""
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

    def add(self, rank: int, event: EventOrBatch) -> None:
        """Add what an event says, or a batch of them, in the order of the rank's file."""
        at = self._ranks.setdefault(rank, _Rank())
        if not isinstance(event, Event):
            self._stepped(rank, at, event.steps)
        elif isinstance(event, schema.Start):
            at.attempt, at.last = event.attempt or 1, None
            self._began.setdefault(at.attempt, event.t)
            for series in (self._steps, self._examples):
                series.begin(rank, at.attempt)
        elif isinstance(event, schema.Schedule):
            if event.batch and event.batch != at.batch:
                at.has_batch(event.first_step, event.batch)
        elif isinstance(event, schema.Step):
            if event.n:
                self._stepped(rank, at, (event,))
        elif isinstance(event, schema.Eval):
            self._named(rank, event.t, event.step, event.values, "eval ")
        elif isinstance(event, schema.Metric):
            self._named(rank, event.t, event.step, event.values, "")

    def _stepped(self, rank: int, at: _Rank, events: Sequence[schema.Step | StepLine]) -> None:
        for event in events if len(self.names) < MOST_NAMES else ():
            for name, field in _OF_STEPS.items():
                if name not in self.names and getattr(event, field) is not None:
                    self._note((name,), "")
        if self.name in _OF_STEPS:
            told = [(e.step, e.t, getattr(e, _OF_STEPS[self.name])) for e in events]
            self._put_all(rank, [(*one, None, None) for one in told if one[2] is not None])
        if self.name != LOSS:
            if events:
                at.last = events[-1].t
            return
        found: list[_Point] = []
        for event in events:
            t, many = event.t, len(event.losses)
            if many:  # spread evenly over the time since the event before
                began = t if at.last is None else min(at.last, t)
                took, first = t - began, event.step - many
                found += [(first + i, began + took * i / many, loss, None, None)
                          for i, loss in enumerate(event.losses, 1)]
            elif event.loss is not None:
                found.append((event.step, t, event.loss, event.loss_min, event.loss_max))
            at.last = t
        self._put_all(rank, found)

    def _put_all(self, rank: int, found: Sequence[_Point]) -> None:
        """Add values in their order: at once, as far as they follow each other and are alike."""
        begin = 0
        for i in range(1, len(found) + 1):
            if i == len(found) or found[i][0] <= found[i - 1][0] \
                    or (found[i][3] is None) != (found[begin][3] is None) \
                    or (found[i][4] is None) != (found[begin][4] is None):
                self._put_some(rank, found[begin:i])
                begin = i

    def _put_some(self, rank: int, found: Sequence[_Point]) -> None:
        steps, times, values, los, his = zip(*found, strict=True)
        if steps[0] < 0 or (los[0] is None) != (his[0] is None):
            for step, t, value, lo, hi in found:
                self._put(rank, step, t, value, lo, hi)
            return
        more = (None, None) if los[0] is None else (los, his)
        at = self._ranks[rank]
        began = self._began.get(at.attempt)
        if began is not None:
            xs = [_since(began, t) for t in times]
            if all(map(le, xs, islice(xs, 1, None))):
                self._time.add_rising(xs, values, *more)
            else:
                for x, value, lo, hi in zip(xs, values, los, his, strict=True):
                    self._time.add(x, value, lo, hi)
        self._steps.extend(rank, steps, values, *more)
        if at.batch is not None:
            examples = [at.examples(step) or 0 for step in steps]
            if rising(examples):
                self._examples.extend(rank, examples, values, *more)
            else:
                for seen, value, lo, hi in zip(examples, values, los, his, strict=True):
                    self._examples.put(rank, seen, value, lo, hi)

    def _named(self, rank: int, t: float, step: int | None, values: Mapping[str, float | None],
               prefix: str) -> None:
        self._note((name for name, value in values.items() if value is not None), prefix)
        if self.name.startswith(prefix):
            value = values.get(self.name.removeprefix(prefix))
            if value is not None:
                self._put(rank, step, t, value)

    def _note(self, names: Iterable[str], prefix: str) -> None:
        for name in names:
            if len(self.names) < MOST_NAMES:
                self.names.setdefault(prefix + name)

    def _put(self, rank: int, step: int | None, t: float, value: float, lo: float | None = None,
             hi: float | None = None) -> None:
        at = self._ranks[rank]
        began = self._began.get(at.attempt)
        if began is not None:
            self._time.add(_since(began, t), value, lo, hi)
        if step is None or step < 0:
            return
        self._steps.put(rank, step, value, lo, hi)
        examples = at.examples(step)
        if examples is not None:
            self._examples.put(rank, examples, value, lo, hi)


def _since(began: float, t: float) -> int:
    """Milliseconds from `began` to `t`, at most a few thousand years: a file may hold any time."""
    return int(min(max((t - began) * 1000, 0.0), 1e14))
