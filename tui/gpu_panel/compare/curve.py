"""One value of one run as curves over steps, over time and over examples, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.events.schema import Event
from gpu_engine.runs.state import State
from gpu_panel.charts.series import RankSeries

_Point = tuple[int, float, float, float, float]
"""Step (-1: none), Unix seconds, value; the least and the greatest of what that is the mean of."""
_OF_STEPS = {"learning rate": "lr", "samples per second of a rank": "samples_per_s",
             "gradient norm": "grad_norm"}
AXES = ("step", "time", "examples")
"""What a curve can be drawn over. Time is in milliseconds since the run began, without the time
between its attempts."""
LOSS = "loss"
MOST_NAMES = 200
"""Names of values that are remembered of a run."""
_MOST_LEFT_OUT = 10_000


@dataclass(slots=True)
class _Rank:
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
        self.left_out: set[int] = set()
        """The hashes of the names that came when there were `MOST_NAMES`."""
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

    def add(self, rank: int, *events: Event) -> None:
        """Add what events say, in the order of the rank's file."""
        at, steps = self._ranks.setdefault(rank, _Rank()), list[schema.Step]()
        for event in events:
            if isinstance(event, schema.Step):
                if event.n:
                    steps.append(event)
            elif isinstance(event, schema.Start | schema.Schedule | schema.Eval | schema.Metric):
                self._stepped(rank, at, steps)
                steps = []
                self._other(rank, at, event)
        self._stepped(rank, at, steps)

    def _other(self, rank: int, at: _Rank, event: Event) -> None:
        if isinstance(event, schema.Start):
            at.attempt, at.last = event.attempt or 1, None
            self._began.setdefault(at.attempt, event.t)
            for series in (self._steps, self._examples):
                series.begin(rank, at.attempt)
        elif isinstance(event, schema.Schedule):
            if event.batch and event.batch != at.batch:
                at.has_batch(event.first_step, event.batch)
        elif isinstance(event, schema.Eval):
            self._named(rank, event.t, event.step, event.values, "eval ")
        elif isinstance(event, schema.Metric):
            self._named(rank, event.t, event.step, event.values, "")

    def _stepped(self, rank: int, at: _Rank, events: Sequence[schema.Step]) -> None:
        for event in events if len(self.names) < MOST_NAMES else ():
            for name, field in _OF_STEPS.items():
                if name not in self.names and getattr(event, field) is not None:
                    self._note((name,), "")
        if self.name in _OF_STEPS:
            told = [(e.step, e.t, getattr(e, _OF_STEPS[self.name])) for e in events]
            self._put(rank, [(*one, one[2], one[2]) for one in told if one[2] is not None])
        if self.name != LOSS:
            return
        found: list[_Point] = []
        for event in events:
            t, many = event.t, len(event.losses)
            if many:  # spread evenly over the time since the event before
                began = t if at.last is None else min(at.last, t)
                took, first = t - began, event.step - many
                found += [(first + i, began + took * i / many, loss, loss, loss)
                          for i, loss in enumerate(event.losses, 1)]
            elif (mean := event.loss) is not None:
                found.append((event.step, t, mean,
                              mean if event.loss_min is None else event.loss_min,
                              mean if event.loss_max is None else event.loss_max))
            at.last = t
        self._put(rank, found)

    def _named(self, rank: int, t: float, step: int | None, values: Mapping[str, float | None],
               prefix: str) -> None:
        self._note((name for name, value in values.items() if value is not None), prefix)
        if self.name.startswith(prefix):
            value = values.get(self.name.removeprefix(prefix))
            if value is not None:
                self._put(rank, [(-1 if step is None else step, t, value, value, value)])

    def _note(self, names: Iterable[str], prefix: str) -> None:
        for name in names:
            if len(self.names) < MOST_NAMES:
                self.names.setdefault(prefix + name)
            elif prefix + name not in self.names and len(self.left_out) < _MOST_LEFT_OUT:
                self.left_out.add(hash(prefix + name))

    def _put(self, rank: int, found: Sequence[_Point]) -> None:
        at = self._ranks[rank]
        began = self._began.get(at.attempt)
        if began is not None and found:
            timed = sorted(((_since(began, t), *of) for _, t, *of in found), key=itemgetter(0))
            self._time.add_rising(*zip(*timed, strict=True))
        known = [point for point in found if point[0] >= 0]
        if not known:
            return
        steps, _, *columns = zip(*known, strict=True)
        self._steps.extend(rank, steps, *columns)
        if at.batch is not None:
            self._examples.extend(rank, [at.examples(step) or 0 for step in steps], *columns)


def _since(began: float, t: float) -> int:
    """Milliseconds from `began` to `t`, at most a few thousand years: a file may hold any time."""
    return int(min(max((t - began) * 1000, 0.0), 1e14))
