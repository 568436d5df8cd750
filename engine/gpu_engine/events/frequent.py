"""The frequent kinds of events, decoded fast and many at a time: steps, memory, heartbeats, and
what the steps' time went into.

A long run has millions of such lines. Nearly all of them fit the types below, and a typed decoder
in C reads them ten times as fast as `convert`. Every other line is left to `convert`, also one with
a field that is not known here, so the types here decide only how fast a line is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from gpu_engine.events.schema import Event

_Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]
_Some = Annotated[int, msgspec.Meta(ge=1, lt=1 << 60)]


class StepLine(msgspec.Struct, tag_field="kind", tag="step", forbid_unknown_fields=True,
               gc=False, omit_defaults=True):
    """A step event of the first optimizer. Its fields are those of `schema.Step`."""

    t: float
    step: _Whole
    lr: float | None = None
    skipped: _Whole | None = None
    n: _Some = 1
    epoch: _Whole | None = None
    loss: float | None = None
    losses: tuple[float, ...] = ()
    loss_min: float | None = None
    loss_max: float | None = None
    loss_last: float | None = None
    samples_per_s: float | None = None
    data_wait: float | None = None
    grad_norm: float | None = None


class MemoryLine(msgspec.Struct, tag_field="kind", tag="memory", forbid_unknown_fields=True,
               gc=False, omit_defaults=True):
    """A memory event. Its fields are those of `schema.Memory`."""

    t: float
    rss: _Whole | None = None
    gpu_allocated: tuple[_Whole | None, ...] = ()
    gpu_reserved: tuple[_Whole | None, ...] = ()
    gpu_peak: tuple[_Whole | None, ...] = ()
    gpu_process: _Whole | None = None


class PhaseLine(msgspec.Struct, tag_field="kind", tag="phase", forbid_unknown_fields=True,
               gc=False, omit_defaults=True):
    """A heartbeat. Its fields are those of `schema.Phase`."""

    t: float
    phase: str
    since: float | None = None
    step: _Whole | None = None
    done: _Whole | None = None
    total: _Whole | None = None
    detail: str | None = None


class TimeLine(msgspec.Struct, tag_field="kind", tag="step_time", forbid_unknown_fields=True,
               gc=False, omit_defaults=True):
    """What the time of some steps went into. Its fields are those of `schema.StepTime`."""

    t: float
    step: _Whole
    n: _Whole
    seconds: float
    data: float | None = None
    copy: float | None = None
    forward: float | None = None
    backward: float | None = None
    wait: float | None = None
    optimizer: float | None = None
    save: float | None = None
    eval: float | None = None
    median: float | None = None
    workers: _Whole | None = None
    device: _Whole | None = None


@dataclass(slots=True)
class Stretch:
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
        """How many events these are."""
        return len(self.steps) + len(self.memory) + len(self.phases) + len(self.times)


Told = Event | Stretch
"""What is read of a rank's file: an event, or many frequent ones at once."""

Frequent = StepLine | MemoryLine | PhaseLine | TimeLine
_decode = msgspec.json.Decoder(Frequent).decode
_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def decoded(lines: Sequence[bytes]) -> list[Frequent | None]:
    """The event in each line; None where it is not one of the frequent ones, or has a number that
    is not finite."""
    try:
        return list(map(_decode, lines))
    except _ERRORS:
        return [_plain(line) for line in lines]


def _plain(line: bytes) -> Frequent | None:
    try:
        return _decode(line)
    except _ERRORS:
        return None


def grouped(lines: Sequence[bytes], plain: Callable[[bytes], Event | None]) -> list[Told]:
    """The events in `lines`, in order but for those within a stretch. `plain` parses a line that
    is not one of the frequent ones; None: there is no event in it."""
    try:
        every = list(map(_decode, lines))
    except _ERRORS:
        return _one_by_one(lines, plain)
    named = (one.step for one in reversed(every)
             if type(one) is StepLine or (type(one) is PhaseLine and one.step is not None))
    return [Stretch([one for one in every if type(one) is StepLine], [],
                    [one for one in every if type(one) is MemoryLine],
                    [one for one in every if type(one) is PhaseLine],
                    next(named, None),
                    [one for one in every if type(one) is TimeLine])] if every else []


def _one_by_one(lines: Iterable[bytes], plain: Callable[[bytes], Event | None]) -> list[Told]:
    """The same where some lines are not of the frequent kinds."""
    found: list[Told] = []
    now: Stretch | None = None
    for line in lines:
        one = _plain(line)
        odd = _odd(line) if one is None else None
        one = one or odd
        if one is None:
            event = plain(line)
            if event is not None:
                found.append(event)
                now = None
            continue
        if now is None:
            now = Stretch()
            found.append(now)
        if isinstance(one, MemoryLine):
            now.memory.append(one)
            continue
        if isinstance(one, TimeLine):
            now.times.append(one)
            continue
        if isinstance(one, PhaseLine):
            now.phases.append(one)
        else:
            now.steps.append(one)
        if one.step is not None:
            now.at_step = one.step
        if odd is not None:
            now.odd.append(odd)
    return found


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _odd(line: bytes) -> StepLine | None:
    """A step event with numbers that are not finite, which are words in the line."""
    if b'"kind":"step"' not in line:
        return None
    try:
        data = msgspec.json.decode(line, type=dict[str, object])
        return msgspec.convert({name: [_number(one) for one in value] if isinstance(value, list)
                                else _number(value) for name, value in data.items()}, StepLine)
    except _ERRORS:
        return None


def _number(value: object) -> object:
    return _WORDS.get(value, value) if isinstance(value, str) else value
