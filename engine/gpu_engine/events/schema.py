"""The events that a rank appends to its file: one frozen dataclass a kind.

One JSON object a line: `t` (unix seconds), `kind`, then the fields of the kind's class below.
Strict JSON, so a number that is not finite goes as the string "NaN", "Infinity" or "-Infinity".
A field whose default is None or empty is left out of the line where it has that value; any other
is always there, null where it is not known.

A new kind is a class here and a function in `view`: it is written, read and checked by its
annotations (see `convert`). Those may be `int` (a whole number from 0), `float`, `str`, each also
with `| None`, the tuples and mappings that `convert` knows, and `Named`.

Standard library only, and no newer than Python 3.9: a rank imports this in any environment that
has torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Dict, Optional, TypeVar  # noqa: UP035

Named = Dict[str, Optional[float]]  # noqa: UP006, UP045
"""Values by their names, which stand among the event's own fields in its line. None: a value that
could not be read."""

OWN_NAMES = frozenset({"t", "kind", "step"})
"""Names that an event of named values needs for itself."""

_Value = TypeVar("_Value")

KINDS: dict[str, type[Event]] = {}
"""Every kind of event by its name."""


@dataclass(frozen=True)
class Event:
    """What all events have."""

    kind: ClassVar[str] = ""
    t: float = field(init=False, default_factory=time.time)
    """When it happened, unix seconds."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls


@dataclass(frozen=True)
class Start(Event):
    """A rank has begun an attempt."""

    kind = "start"
    rank: int
    """The number of its record, too."""
    local_rank: int | None
    node: int | None
    pid: int | None
    started: int | None
    """When the process started, in clock ticks since boot."""
    world_size: int | None
    device: tuple[str, ...] = ()
    """Labels."""
    attempt: int = 1
    as_rank: int | None = None
    """The rank that it trains as, where other processes do so at the same time. `rank` is then
    the number of its record alone."""
    process: int | None = None
    """Which of those processes it is, from 2."""


@dataclass(frozen=True)
class Schedule(Event):
    """What this attempt is to do."""

    kind = "schedule"
    total_steps: int | None
    steps_per_epoch: int | None
    epochs: int | None
    examples: int | None
    dropped: int | None
    """Examples that each epoch leaves out."""
    batch: int | None
    """Examples in a global batch."""
    first_step: int = 0


@dataclass(frozen=True)
class Other:
    """Steps of an optimizer beside the first, in a person's own script."""

    name: str | None
    step: int
    n: int
    loss: float | None = None
    losses: tuple[float, ...] = ()
    loss_min: float | None = None
    loss_max: float | None = None
    loss_last: float | None = None


@dataclass(frozen=True)
class Step(Event):
    """Optimizer steps since the last such event."""

    kind = "step"
    step: int
    """The last one covered."""
    lr: float | None
    skipped: int | None
    """Steps so far that a GradScaler or train.on_nonfinite left out."""
    n: int = 1
    """How many; 0: nothing new but in `others`."""
    epoch: int | None = None
    """None in a person's own script, as are samples_per_s and data_wait."""
    loss: float | None = None
    """Mean of the n."""
    losses: tuple[float, ...] = ()
    """Each of the n. Where they are too many, the next three instead."""
    loss_min: float | None = None
    loss_max: float | None = None
    loss_last: float | None = None
    samples_per_s: float | None = None
    """This rank's own."""
    data_wait: float | None = None
    """Share of the time in which it waited for data, 0 to 1."""
    grad_norm: float | None = None
    others: Mapping[int, Other] | None = None
    """Further optimizers by their number, from 1."""


@dataclass(frozen=True)
class Training(Event):
    """A script trains again in the same process."""

    kind = "training"
    number: int
    """Which training this is, from 2."""
    step: int
    """Steps before it, which its own go on counting."""
    name: str | None
    optimizer: int | None
    """Name and number of its optimizer."""


@dataclass(frozen=True)
class Memory(Event):
    """What the rank holds, in bytes; of GPUs one entry a device."""

    kind = "memory"
    rss: int | None
    gpu_allocated: tuple[int | None, ...] = ()
    gpu_reserved: tuple[int | None, ...] = ()
    gpu_peak: tuple[int | None, ...] = ()
    gpu_process: int | None = None


@dataclass(frozen=True)
class Metric(Event):
    """Values that the task or script reports of itself."""

    kind = "metric"
    step: int | None
    values: Named


@dataclass(frozen=True)
class Eval(Event):
    """What an evaluation has found."""

    kind = "eval"
    step: int | None
    values: Named


@dataclass(frozen=True)
class Checkpoint(Event):
    """A checkpoint was written."""

    kind = "checkpoint"
    step: int
    path: str | None
    """Relative to the run folder."""
    seconds: float | None
    bytes: int | None
    blocked: float | None = None
    """Seconds of these in which training waited."""


@dataclass(frozen=True)
class Phase(Event):
    """The heartbeat, once a second: what the rank is doing."""

    kind = "phase"
    phase: str
    """init, data, forward, backward, optimizer, eval, checkpoint or done; of a person's own
    script, all that is neither backward nor optimizer is running."""
    since: float | None
    """Unix seconds."""
    step: int | None
    done: int | None = None
    """While a checkpoint is written, in whatever phase the training is: bytes so far."""
    total: int | None = None
    """Bytes that it will have, about."""
    detail: str | None = None
    """What the rank is busy with or waits for, where the phase says too little."""


@dataclass(frozen=True)
class Warning(Event):
    """Something that a person should know, and that ends nothing."""

    kind = "warning"
    message: str


@dataclass(frozen=True)
class Error(Event):
    """Why the rank fails."""

    kind = "error"
    type: str
    """The exception's class."""
    message: str
    traceback: str | None
    phase: str | None
    step: int | None
    allocated: int | None = None
    """Out of memory: bytes, as are the next two."""
    reserved: int | None = None
    requested: int | None = None


@dataclass(frozen=True)
class End(Event):
    """The rank ends."""

    kind = "end"
    outcome: str | None
    """completed, stopped or failed. None: its exit status will tell, and the supervisor writes
    it."""
    steps: int | None
    seconds: float | None


# --- names of values --------------------------------------------------------------------------


def apart(values: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """Named values as an event takes them: a name that it needs for itself ("step") gets an
    underscore behind."""
    if OWN_NAMES.isdisjoint(values):
        return values
    out = {name: value for name, value in values.items() if name not in OWN_NAMES}
    for name in OWN_NAMES.intersection(values):
        other = name + "_"
        while other in out:
            other += "_"
        out[other] = values[name]
    return out


def apart_in_words(values: Iterable[str]) -> str | None:
    """What to say of names that are kept under others; None: there are none."""
    names = sorted(OWN_NAMES.intersection(values))
    if not names:
        return None
    return "; ".join(f'a value named "{name}" is recorded as "{name}_": the record needs the name '
                     "for itself" for name in names)
