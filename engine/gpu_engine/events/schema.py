"""The events that a rank appends to its file: one frozen dataclass per kind.

Each line is a JSON object: `t` (Unix seconds), `kind`, then the fields of the kind's class below.
JSON has no numbers that are not finite, so these are the strings "NaN", "Infinity" and "-Infinity".
A field whose default is None or empty is left out of the line if it has that value; every other
field is always there, null if its value is not known.

To add a kind, add its class here and a function in `view`: it is written, read and checked by its
annotations (see `reader`). These may be `int` (a whole number from 0), `float`, `str`, each also
with `| None`, the tuples and mappings that `reader` knows, and `Named`.

Standard library only: a rank imports this in any environment that has torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Dict, TypeVar  # noqa: UP035

Named = Dict[str, float | None]  # noqa: UP006
"""Values by name. In the line they stand beside the event's own fields. None: a value that could
not be read."""

RESERVED_NAMES = frozenset({"t", "kind", "step", ""})
"""The own fields of an event with named values, and no name at all: no value can have such a
name."""

_Value = TypeVar("_Value")

SLEEP = "time.sleep"
"""What `Stands.waits` says of a rank that wakes up by itself."""
DEBUGGER = "its debugger"
"""What it says of a rank that waits for a person."""
WAITING = "waiting for "
"""So begins `Phase.detail` of a rank of the engine's own that waits for others."""

KINDS: dict[str, type[Event]] = {}
"""Every kind of event by its name."""


@dataclass(frozen=True)
class Event:
    """What all events have."""

    kind: ClassVar[str] = ""
    t: float = field(init=False, default_factory=time.time)
    """When it happened, Unix seconds."""

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls


@dataclass(frozen=True)
class Start(Event):
    """A rank has begun an attempt."""

    kind = "start"
    rank: int
    """The rank, and the number of its files in `ranks/`."""
    local_rank: int | None
    node: int | None
    pid: int | None
    started: int | None
    """When the process started, in clock ticks since boot."""
    world_size: int | None
    device: tuple[str, ...] = ()
    """The labels of its devices."""
    attempt: int = 1
    as_rank: int | None = None
    """Set if several processes train as the same rank at the same time: that rank. `rank` is then
    only the number of this process's files."""
    process: int | None = None
    """The number of this process among them, from 2."""


@dataclass(frozen=True)
class Schedule(Event):
    """What this attempt is going to do."""

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
    """Steps of a second or further optimizer in a person's own script. Fields as in `Step`."""

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
    """The optimizer steps since the last event of this kind."""

    kind = "step"
    step: int
    """The last of these steps."""
    lr: float | None
    skipped: int | None
    """How many steps so far were skipped by a GradScaler or by train.on_nonfinite."""
    n: int = 1
    """How many steps these are; 0: only `others` has something new."""
    epoch: int | None = None
    """None in a person's own script, as are samples_per_s and data_wait."""
    loss: float | None = None
    """The mean loss of the n steps, as far as it is known."""
    losses: tuple[float, ...] = ()
    """The loss of each of the n steps, which follow each other. If they are too many, or some of
    their losses are unknown, the next three fields instead."""
    loss_min: float | None = None
    loss_max: float | None = None
    loss_last: float | None = None
    samples_per_s: float | None = None
    """Of this rank alone."""
    data_wait: float | None = None
    """The share of the time that was spent waiting for data, 0 to 1."""
    grad_norm: float | None = None
    others: Mapping[int, Other] | None = None
    """The steps of further optimizers, by the optimizer's number, from 1."""


@dataclass(frozen=True)
class StepTime(Event):
    """What the time since the last event of this kind was spent on, in seconds. A part that can't
    be seen is None. What the parts leave of `seconds` is the rest."""

    kind = "step_time"
    step: int
    """Steps so far."""
    n: int
    """How many steps these are."""
    seconds: float
    """All of the time that is told of here."""
    data: float | None = None
    """Waiting for the next batch."""
    copy: float | None = None
    """Copying batches to the device."""
    forward: float | None = None
    """From the batch to the backward pass."""
    backward: float | None = None
    wait: float | None = None
    """Waiting for other ranks, and exchanging gradients, beyond what overlaps with the backward
    pass."""
    optimizer: float | None = None
    save: float | None = None
    """Saving, as far as training waits for it; in a person's own script also logging."""
    eval: float | None = None
    median: float | None = None
    """The time of a step in the middle of all of them, without `save` and `eval`."""
    workers: int | None = None
    """How many worker processes the loader has that training reads from."""
    device: int | None = None
    """1: the parts are seconds on the GPU between events on its stream; else of the process."""
    caught_up: int | None = None
    """On a GPU: in how many of the steps it had done all that it was given whenever a part began,
    so that the process does not keep it busy."""
    waited: int | None = None
    """On a GPU: in how many of the steps the process waited for it where only the task or the
    script can have asked for that, as `loss.item()` does."""
    gc: float | None = None
    """Seconds of full garbage collections, which are in the other parts, too."""
    gcs: int | None = None
    """How many of them."""
    exchange: float | None = None
    """What `wait` is at most in that tenth of the steps in which it is shortest: this rank then
    came last, and waited for the exchange of gradients alone."""
    stalls: int | None = None
    """How many steps took five times as long as the one in the middle of the event before."""
    stalled: float | None = None
    """Seconds that these took beyond that."""
    every: int | None = None
    """How many steps there are from one of them to the next, if most times the same number."""
    stalled_in: str | None = None
    """The part, or "other", which most of the last one went into."""


PARTS = ("data", "copy", "forward", "backward", "wait", "optimizer", "save", "eval")
"""The fields of `StepTime` that are parts of its seconds."""


@dataclass(frozen=True)
class Training(Event):
    """A script starts another training in the same process."""

    kind = "training"
    number: int
    """The number of this training, from 2."""
    step: int
    """How many steps came before it. Its own steps are counted on from there."""
    name: str | None
    """The name of its optimizer."""
    optimizer: int | None
    """The number of its optimizer."""


@dataclass(frozen=True)
class Memory(Event):
    """The rank's memory, in bytes; for GPUs one entry per device."""

    kind = "memory"
    rss: int | None
    gpu_allocated: tuple[int | None, ...] = ()
    gpu_reserved: tuple[int | None, ...] = ()
    gpu_peak: tuple[int | None, ...] = ()
    gpu_process: int | None = None
    gpu_total: tuple[int | None, ...] = ()
    """What each device has."""
    rss_peak: int | None = None
    """The most that rss has been."""
    gpu_retries: tuple[int | None, ...] = ()
    """How often torch ran out of it, gave back what it kept for later and tried again; left out
    where it never did."""


@dataclass(frozen=True)
class Devices(Event):
    """The figures of the devices of one machine, which its supervisor writes to `devices.jsonl`
    every few seconds. One entry for each device, null if it is not known; a list is left out if
    it is not known of any."""

    kind = "devices"
    ids: tuple[str, ...]
    """The devices as `devices.ids` names them on that machine."""
    utilization: tuple[float | None, ...] = ()
    """0 to 1."""
    memory_used: tuple[int | None, ...] = ()
    """Bytes, of everybody's processes; for CPU slots, of the machine."""
    temperature: tuple[float | None, ...] = ()
    """Degrees Celsius."""
    power: tuple[float | None, ...] = ()
    """Watts."""
    clock: tuple[float | None, ...] = ()
    """The clock as a share of the device's highest."""
    throttle: tuple[str | None, ...] = ()
    """Why the clock is held down, in words with commas between them; "" where it is not."""
    others: tuple[float | None, ...] = ()
    """The share of the device's time that processes use which are not this run's, 0 to 1."""


@dataclass(frozen=True)
class Metric(Event):
    """Values that the task or the script logs."""

    kind = "metric"
    step: int | None
    values: Named


@dataclass(frozen=True)
class Eval(Event):
    """The result of an evaluation."""

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
    """For how many of these seconds training waited."""


@dataclass(frozen=True)
class Phase(Event):
    """The heartbeat, once a second: what the rank is doing."""

    kind = "phase"
    phase: str
    """init, data, forward, backward, optimizer, eval, checkpoint or done. In a person's own
    script, everything but backward and optimizer is called running."""
    since: float | None
    """When this phase began, Unix seconds."""
    step: int | None
    done: int | None = None
    """While a checkpoint is being written, in any phase: the bytes written so far."""
    total: int | None = None
    """About how many bytes that checkpoint will have."""
    detail: str | None = None
    """What the rank is doing or waiting for, if the phase says too little."""


@dataclass(frozen=True)
class Collective:
    """One collective operation that a rank has begun, as torch's flight recorder has it."""

    group: str
    """The name of the process group, the same on all its ranks; "0" for that of all ranks."""
    number: int
    """Counted within the group. Ranks meet in operations of the same number."""
    operation: str
    """all_reduce, broadcast, …"""
    size: str
    """What goes in: "18696 float", "4×8 bfloat16, 3 int"; "" for a barrier."""
    began: float
    """When this rank called it, Unix seconds."""
    done: bool
    """Whether it has ended on this rank."""
    point: bool = False
    """Whether it is a send or receive between two ranks, which are counted apart."""


@dataclass(frozen=True)
class Stands(Event):
    """The rank has made no step for ten seconds: where it is. Written again when that has changed,
    and seldom while it only works on."""

    kind = "stands"
    step: int | None
    phase: str
    since: float
    """When its step or phase last changed, Unix seconds."""
    works: bool
    """Whether its process and those below it have used the processor, the disk or the network in
    the seconds before, or the thread that trains has gone on: it has begun another operation, got
    another batch, or woken up again and again."""
    place: str | None
    """The innermost line that is not a library's: "train.py:40 in main"."""
    stack: tuple[str, ...] = ()
    """All of the thread that trains, innermost first."""
    collectives: Mapping[int, Collective] | None = None
    """The last ones that it has begun, oldest first."""
    worker: str | None = None
    """The line of a worker of its loader that has not brought an example yet."""
    waits: str | None = None
    """What it waits in that is known by its name: "recv", "store.wait", "time.sleep"."""


@dataclass(frozen=True)
class Quiet(Event):
    """Nothing comes from the rank. Its supervisor says this of it, so it is no sign of life."""

    kind = "quiet"
    process: str
    """What its process does: "works", on a core or waiting for one; "suspended"; or "sleeps"."""


@dataclass(frozen=True)
class Trace(Event):
    """The rank has written the trace that a person has asked for, or could not."""

    kind = "trace"
    first: int
    """The first of the traced steps."""
    steps: int
    path: str | None = None
    """Relative to the run folder."""
    problem: str | None = None
    """Why there is none."""


@dataclass(frozen=True)
class Warning(Event):
    """Something that a person should know about, though training goes on."""

    kind = "warning"
    message: str
    code: str | None = None
    """Set if it is about the run and not about this rank alone: one word, the same in every
    version, by which it is told once however many ranks say it. See `events.notices`."""
    cure: tuple[str, ...] = ()
    """With a code: the lines of a script that would mend it."""


@dataclass(frozen=True)
class Error(Event):
    """The error with which the rank fails."""

    kind = "error"
    type: str
    """The name of the exception's class."""
    message: str
    traceback: str | None
    phase: str | None
    step: int | None
    allocated: int | None = None
    """This field and the next two are set if memory ran out; in bytes."""
    reserved: int | None = None
    requested: int | None = None
    held_by: tuple[str, ...] = ()
    """With run.oom_snapshot, the lines that held most memory: "6.2 GiB by train.py:40 in main"."""


@dataclass(frozen=True)
class End(Event):
    """The rank ends."""

    kind = "end"
    outcome: str | None
    """completed, stopped or failed. None: not known yet; the supervisor adds it when it sees the
    exit status."""
    steps: int | None
    seconds: float | None
    exit: int | None = None
    """The status with which the script itself has ended the process, by os._exit: what Python does
    at its end was left out."""


# --- names of values --------------------------------------------------------------------------


def rename_reserved(values: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """Named values without reserved names: an underscore is added to a name such as "step"."""
    if RESERVED_NAMES.isdisjoint(values):
        return values
    out = {name: value for name, value in values.items() if name not in RESERVED_NAMES}
    for name in RESERVED_NAMES.intersection(values):
        other = name + "_"
        while other in out:
            other += "_"
        out[other] = values[name]
    return out


def reserved_warning(values: Iterable[str]) -> str | None:
    """The warning about values that `rename_reserved` renames; None if there are none."""
    names = sorted(RESERVED_NAMES.intersection(values))
    if not names:
        return None
    return "; ".join(f'a value named "{name}" is recorded as "{name}_": the name "{name}" is '
                     "reserved" for name in names)
