"""The time of a run, from which the pauses between its attempts are left out, and the moments that
its charts mark: attempts, trainings, evaluations, checkpoints. Pure, and bounded: of too many,
every other one is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.events import schema
from gpu_engine.runs.state import AttemptRecord, State
from gpu_panel.charts.marks import BEGINS, CHECKPOINT, EVALUATION, Mark


class RunClock:
    """Turns moments into seconds of the run. Each attempt begins with a second of its own, and what
    was once said of one stays, so that curves don't shift."""

    def __init__(self) -> None:
        self._began: dict[int, tuple[float, float]] = {}
        """Attempt → (when it began, when it would have begun without the pauses), Unix seconds."""
        self._last = 0.0

    def learn(self, state: State) -> None:
        passed = 0
        for one in state.attempts or (AttemptRecord(1, state.started or state.created),):
            self._began.setdefault(one.number, (one.started, one.started - passed))
            passed += int((one.ended or one.started) - one.started) + 1

    def begun(self, attempt: int, at: float) -> None:
        """Take in that a rank has begun an attempt, of which the state may not say so yet."""
        if self._began:
            self._began.setdefault(attempt, (at, at - int(self._last) - 1))

    def seconds(self, at: float) -> float | None:
        """The time of the run at this Unix second; None if nothing is known of the run."""
        found = None
        for began, origin in self._began.values():
            if found is None or at >= began:
                found = max(at - origin, 0.0)
        self._last = max(self._last, found or 0.0)
        return found

    def moment(self, seconds: float) -> float:
        """When this time of the run was, Unix seconds."""
        found = 0.0
        for began, origin in self._began.values():
            if not found or origin + seconds >= began:
                found = origin + seconds
        return found


MOST = 500
"""Marks of a kind that are kept: more than a chart has columns."""


@dataclass(frozen=True, slots=True)
class Happened:
    """When something happened, and what is said about it."""

    step: int
    at: float
    """Unix seconds."""
    text: str


@dataclass(slots=True)
class Moments:
    """What events say about such moments. Keys: steps, as a step that is trained again in another
    attempt is evaluated again; attempts have their number."""

    evaluations: dict[int, Happened] = field(default_factory=dict)
    checkpoints: dict[int, Happened] = field(default_factory=dict)
    attempts: dict[int, float] = field(default_factory=dict)
    """Attempt, from 2 → when it began, Unix seconds."""

    def evaluated(self, event: schema.Eval) -> None:
        if event.step is None or not event.values:
            return
        said = ", ".join(f"{clean(name, 20)} {units.loss(v)}"
                         for name, v in list(event.values.items())[:4])
        self.evaluations[event.step] = Happened(event.step, event.t, narrow(f"eval {said}"))
        _thin(self.evaluations)

    def saved(self, event: schema.Checkpoint) -> None:
        took = "" if event.seconds is None else f" in {event.seconds:.1f} s"
        big = "" if event.bytes is None else f", {units.size(event.bytes)}"
        self.checkpoints[event.step] = Happened(event.step, event.t, f"checkpoint{big}{took}")
        _thin(self.checkpoints)

    def begun(self, event: schema.Start) -> None:
        if event.attempt > 1:
            self.attempts.setdefault(event.attempt, event.t)


def marks(moments: Moments, begins: Mapping[int, int], trainings: Mapping[int, int],
          clock: RunClock, *, by_time: bool) -> list[Mark]:
    """The marks of a chart over steps, or over the seconds of the run. `begins`: attempt → its
    first step; `trainings`: training → the steps before it."""
    each = [(moments.checkpoints, CHECKPOINT), (moments.evaluations, EVALUATION)]
    if by_time:
        found = [Mark(int(clock.seconds(at) or 0), BEGINS, f"attempt {number} begins")
                 for number, at in moments.attempts.items()]
        return found + [
            Mark(int(clock.seconds(m.at) or 0), kind, f"{m.text} at step {m.step:,}")
            for of, kind in each for m in of.values()]
    found = [Mark(step, BEGINS, f"attempt {number} begins") for number, step in begins.items()]
    found += [Mark(step, BEGINS, f"training {number} begins")
              for number, step in trainings.items()]
    return found + [Mark(m.step, kind, m.text) for of, kind in each for m in of.values()]


def narrow(text: str) -> str:
    """`text` with "?" for characters that are not one cell wide, as a chart writes one a cell."""
    return text if text.isascii() else "".join(c if cell_len(c) == 1 else "?" for c in text)


def _thin(each: dict[int, Happened]) -> None:
    if len(each) > MOST:
        for step in sorted(each)[1::2]:
            del each[step]
