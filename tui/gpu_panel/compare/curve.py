"""One value of one run as curves over steps and over time, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.events.schema import Event
from gpu_engine.events.view import Point, points_of
from gpu_engine.runs.state import State
from gpu_panel.charts.series import RankSeries

_OF_STEPS = {"learning rate": "lr", "samples per second of a rank": "samples_per_s",
             "gradient norm": "grad_norm"}
LOSS = "loss"
MOST_NAMES = 200
"""Names of values that are remembered of a run."""


class RunCurve:
    """The values of one name, the ranks' mean, of one run."""

    def __init__(self, name: str = LOSS) -> None:
        self.name = name
        self.names: dict[str, None] = {LOSS: None}
        """All values that the events have so far, in the order in which they came."""
        self._steps = RankSeries()
        self._time = Series()
        self._attempts: dict[int, int] = {}
        self._last: dict[int, float] = {}
        """Rank → the time of its last event with steps in its attempt, Unix seconds."""
        self._began: dict[int, float] = {}
        """Attempt → Unix seconds from which its time is counted."""

    def over(self, axis: str) -> Series:
        """The curve over "step", or over "time": milliseconds since the run began, without the time
        between its attempts."""
        return self._time if axis == "time" else self._steps.all

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
        steps: list[schema.Step] = []
        for event in events:
            if isinstance(event, schema.Step):
                if event.n:
                    steps.append(event)
            elif isinstance(event, schema.Start | schema.Eval | schema.Metric):
                self._stepped(rank, steps)
                steps = []
                if isinstance(event, schema.Start):
                    self._begin(rank, event)
                else:
                    self._named(rank, event, "eval " if isinstance(event, schema.Eval) else "")
        self._stepped(rank, steps)

    def _begin(self, rank: int, event: schema.Start) -> None:
        attempt = self._attempts[rank] = event.attempt or 1
        self._last.pop(rank, None)
        self._began.setdefault(attempt, event.t)
        self._steps.begin(rank, attempt)

    def _stepped(self, rank: int, events: Sequence[schema.Step]) -> None:
        for name, field in _OF_STEPS.items():
            told = [(e.step, e.t, value, value, value) for e in events
                    if (value := getattr(e, field)) is not None]
            if told:
                self._note(name)
                if self.name == name:
                    self._put(rank, told)
        if self.name != LOSS:
            return
        points: list[Point] = []
        for event in events:
            points += points_of(event, event.t, self._last.get(rank))
            self._last[rank] = event.t
        self._put(rank, points)

    def _named(self, rank: int, event: schema.Eval | schema.Metric, prefix: str) -> None:
        values: Mapping[str, float | None] = event.values
        for name, value in values.items():
            if value is not None:
                self._note(prefix + name)
                if prefix + name == self.name:
                    step = -1 if event.step is None else event.step
                    self._put(rank, [(step, event.t, value, value, value)])

    def _note(self, name: str) -> None:
        if len(self.names) < MOST_NAMES:
            self.names.setdefault(name)

    def _put(self, rank: int, points: Sequence[Point]) -> None:
        began = self._began.get(self._attempts.get(rank, 1))
        if began is not None and points:
            timed = sorted(((_since(began, t), *of) for _, t, *of in points), key=itemgetter(0))
            self._time.add_rising(*zip(*timed, strict=True))
        known = [point for point in points if point[0] >= 0]
        if known:
            steps, _, *columns = zip(*known, strict=True)
            self._steps.extend(rank, steps, *columns)


def _since(began: float, t: float) -> int:
    """Milliseconds from `began` to `t`, at most a few thousand years: a file may hold any time."""
    return int(min(max((t - began) * 1000, 0.0), 1e14))
