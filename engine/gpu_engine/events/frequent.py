"""The frequent kinds of events, decoded fast and many at a time: steps, memory, heartbeats, and
what the steps' time went into.

A long run has millions of such lines. Nearly all of them fit the types below, and a typed decoder
in C reads them ten times as fast as `decode`. Every other line is left to that, also one with a
field that is not known here, so the types here decide only how fast a line is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpu_engine.events import schema
from gpu_engine.events.decode import ERRORS, placed, shape_of, struct_of, with_words
from gpu_engine.events.schema import Event

if TYPE_CHECKING:
    from gpu_engine.events.schema import Memory as MemoryLine
    from gpu_engine.events.schema import Phase as PhaseLine
    from gpu_engine.events.schema import Step as StepLine
    from gpu_engine.events.schema import StepTime as TimeLine
else:
    StepLine = struct_of(schema.Step, "step", without="others",
                         n=Annotated[int, msgspec.Meta(ge=1, lt=1 << 60)])
    """A step event of the first optimizer."""
    MemoryLine, PhaseLine = struct_of(schema.Memory, "memory"), struct_of(schema.Phase, "phase")
    TimeLine = struct_of(schema.StepTime, "step_time")


@dataclass(slots=True)
class EventBatch:
    """The frequent events of one rank between two others, each kind in the order of the file."""

    steps: list[StepLine] = field(default_factory=list)
    odd: list[StepLine] = field(default_factory=list)
    """Those of `steps` with a number that is not finite."""
    memory: list[MemoryLine] = field(default_factory=list)
    phases: list[PhaseLine] = field(default_factory=list)
    at_step: int | None = None
    """The step that the last step event or heartbeat with one names."""
    times: list[TimeLine] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps) + len(self.memory) + len(self.phases) + len(self.times)

    def add(self, event: Frequent) -> None:
        """Add the next event of the file."""
        if isinstance(event, MemoryLine):
            self.memory.append(event)
        elif isinstance(event, TimeLine):
            self.times.append(event)
        else:
            if isinstance(event, PhaseLine):
                self.phases.append(event)
            else:
                self.steps.append(event)
            self.at_step = event.step if event.step is not None else self.at_step


EventOrBatch = Event | EventBatch
"""What is read of a rank's file: an event, or many frequent ones at once."""

Frequent = StepLine | MemoryLine | PhaseLine | TimeLine
_decode = msgspec.json.Decoder(Frequent).decode


def decoded(line: bytes) -> Frequent | None:
    """The event in a line; None where it is not one of the frequent ones, or has a number that is
    not finite."""
    try:
        event = _decode(line)
    except ERRORS:
        return None
    return placed(event) if type(event) is StepLine else event


def grouped(lines: Sequence[bytes], plain: Callable[[bytes], Event | None]) -> list[EventOrBatch]:
    """The events in `lines`, in order but for those within a batch. `plain` parses a line that
    is not one of the frequent ones; None: there is no event in it."""
    try:
        every = list(map(_decode, lines))
    except ERRORS:
        return _one_by_one(lines, plain)
    if not every:
        return []
    named = (one.step for one in reversed(every)
             if type(one) is StepLine or (type(one) is PhaseLine and one.step is not None))
    return [EventBatch([placed(one) for one in every if type(one) is StepLine], [],
                       [one for one in every if type(one) is MemoryLine],
                       [one for one in every if type(one) is PhaseLine],
                       next(named, None),
                       [one for one in every if type(one) is TimeLine])]


def _one_by_one(lines: Iterable[bytes], plain: Callable[[bytes], Event | None]
                ) -> list[EventOrBatch]:
    """The same where some lines are not of the frequent kinds."""
    found: list[EventOrBatch] = []
    for line in lines:
        one = decoded(line)
        odd = _odd(line) if one is None else None
        frequent = one or odd
        if frequent is None:
            if (event := plain(line)) is not None:
                found.append(event)
            continue
        now = found[-1] if found else None
        if not isinstance(now, EventBatch):
            now = EventBatch()
            found.append(now)
        now.add(frequent)
        if odd is not None:
            now.odd.append(odd)
    return found


def _odd(line: bytes) -> StepLine | None:
    """A step event with numbers that are not finite, which are words in the line."""
    if b'"kind":"step"' not in line:
        return None
    try:
        data = msgspec.json.decode(line, type=dict[str, Any])
        return placed(msgspec.convert(with_words(data, shape_of(schema.Step)), StepLine))
    except ERRORS:
        return None
