"""The moments of a run that its charts mark: attempts, trainings, evaluations, checkpoints, and a
person's notes.

Bounded: of too many, every other one is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series, rising
from gpu_engine.events import schema
from gpu_engine.events.frequent import StepLine
from gpu_engine.runs import chart_annotations as written
from gpu_panel.charts.marks import BEGINS, CHECKPOINT, EVALUATION, NOTE, Mark
from gpu_panel.common import units
from gpu_panel.run.clock import RunClock

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
    notes: list[written.Mark] = field(default_factory=list)
    clock: Series = field(default_factory=Series)
    """Step → second of the run, as one rank has told."""
    _clock_of: int | None = None

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

    def stepped(self, rank: int, events: Sequence[schema.Step | StepLine],
                clock: RunClock) -> None:
        if self._clock_of is None:
            self._clock_of = rank
        if rank != self._clock_of:
            return
        steps, seconds = [e.step for e in events], [clock.seconds(e.t) or 0.0 for e in events]
        if rising(steps) and (self.clock.last is None or steps[0] > self.clock.last):
            self.clock.add_rising(steps, seconds)
            return
        for step, at in zip(steps, seconds, strict=True):
            if self.clock.last is not None and step <= self.clock.last:
                self.clock.cut(step)
            self.clock.add(step, at)

    def seconds_at(self, step: int) -> int | None:
        """About when a step was done, in seconds of the run; None if that is unknown."""
        clock = self.clock
        i = min(step // clock.stride - clock.first, len(clock) - 1)
        while i >= 0 and not clock.count[i]:  # not every step is told
            i -= 1
        return int(clock.total[i] / clock.count[i]) if i >= 0 else None

    def step_at(self, seconds: float) -> int | None:
        """About which step was done then; None before the first and if none is known."""
        clock, found = self.clock, None
        for i in range(len(clock)):
            if clock.count[i] and clock.total[i] / clock.count[i] <= seconds:
                found = (clock.first + i) * clock.stride
        return found


def marks(moments: Moments, begins: Mapping[int, int], trainings: Mapping[int, int],
          clock: RunClock, *, by_time: bool) -> list[Mark]:
    """The marks of a chart over steps, or over the seconds of the run. `begins`: attempt → its
    first step; `trainings`: training → the steps before it."""
    each = [(moments.checkpoints, CHECKPOINT), (moments.evaluations, EVALUATION)]
    notes = [Mark(x, NOTE, narrow(clean(note.text, written.LONGEST))) for note in moments.notes
             if (x := _place(moments, note, clock, by_time)) is not None]
    if by_time:
        found = [Mark(int(clock.seconds(at) or 0), BEGINS, f"attempt {number} begins")
                 for number, at in moments.attempts.items()]
        return found + notes + [
            Mark(int(clock.seconds(m.at) or 0), kind, f"{m.text} at step {m.step:,}")
            for of, kind in each for m in of.values()]
    found = [Mark(step, BEGINS, f"attempt {number} begins") for number, step in begins.items()]
    found += [Mark(step, BEGINS, f"training {number} begins")
              for number, step in trainings.items()]
    return found + notes + [Mark(m.step, kind, m.text) for of, kind in each for m in of.values()]


def _place(moments: Moments, note: written.Mark, clock: RunClock, by_time: bool) -> int | None:
    """The x of a note; None if it has none on this chart."""
    seconds = None if note.t is None else clock.seconds(note.t)
    if by_time:
        if seconds is not None:
            return int(seconds)
        return None if note.step is None else moments.seconds_at(note.step)
    if note.step is not None:
        return note.step
    return None if seconds is None else moments.step_at(seconds)


def narrow(text: str) -> str:
    """`text` with "?" for characters that are not one cell wide, as a chart writes one a cell."""
    return text if text.isascii() else "".join(c if cell_len(c) == 1 else "?" for c in text)


def _thin(each: dict[int, Happened]) -> None:
    if len(each) > MOST:
        for step in sorted(each)[1::2]:
            del each[step]
