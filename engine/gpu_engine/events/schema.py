"""The events that a rank appends to its file: one frozen dataclass a kind.

One JSON object a line: `t` (unix seconds), `kind`, then the fields of the kind's class below.
Strict JSON, so a number that is not finite goes as the string "NaN", "Infinity" or "-Infinity".
A field whose default is None or empty is left out of the line where it has that value; any other
is always there, null where it is not known.

A new kind is a class here and its line in `view.FOLD`: it is written, read and checked by its
annotations. Those may be `int` (a whole number from 0), `float`, `str`, each also with `| None`,
the tuples and mappings that `_CHECKS` knows, and `Named`.

Standard library only, and no newer than Python 3.9: a rank imports this in any environment that
has torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Dict, Optional  # noqa: UP035

Named = Dict[str, Optional[float]]  # noqa: UP006, UP045
"""Values by their names, which stand among the event's own fields in its line. None: a value that
could not be read."""

OWN_NAMES = frozenset({"t", "kind", "step"})
"""Names that an event of named values needs for itself."""

KINDS: dict[str, type[Event]] = {}
"""Every kind of event by its name."""


class BadEvent(ValueError):
    """A line that is no event, or one with a field of another type than it must have."""


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


# --- to and from the object in a line ---------------------------------------------------------


def to_dict(event: Event) -> dict[str, Any]:
    """The JSON object of an event, numbers that are not finite included."""
    out: dict[str, Any] = {"t": round(event.t, 3), "kind": event.kind}
    _put(event, _shape_of(type(event)), out)
    return out


def from_dict(data: Any, unknown: Callable[[str], None] = lambda name: None) -> Event | None:
    """The event of a JSON object; None for a kind that is not known here.

    `unknown` is called with the name of a kind or a field that is left out. Raises BadEvent where
    it is no event or a field has another type than it must have.
    """
    if type(data) is not dict or type(data.get("kind")) is not str:
        raise BadEvent("not an event")
    cls = KINDS.get(data["kind"])
    if cls is None:
        unknown(data["kind"])
        return None
    return _read(cls, _shape_of(cls), data, unknown)


def number(value: Any) -> float | None:
    """A number as an event carries it, back as a float ("NaN" as nan); None if it is none."""
    try:
        return _number(value)
    except BadEvent:
        return None


def strict(value: Any) -> Any:
    """`value` with every float that is not finite as a string, so that strict JSON takes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    return value


def apart(values: Mapping[str, Any]) -> Mapping[str, Any]:
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


# --- what a class's annotations say -----------------------------------------------------------

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST = 1 << 60
_Check = Callable[[Any], Any]
"""Takes a value from JSON and returns the field's. Raises BadEvent."""


def _whole(value: Any) -> int:
    if type(value) is int and 0 <= value < _LARGEST:
        return value
    raise BadEvent(f"not a whole number: {value!r:.40}")


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and -_LARGEST < value < _LARGEST:
        return float(value)
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise BadEvent(f"not a number: {value!r:.40}")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    raise BadEvent(f"not a text: {value!r:.40}")


def _time(value: Any) -> float:
    found = _number(value)
    if math.isfinite(found):
        return found
    raise BadEvent("not a time")


def _or_none(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _whole_or_none(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < _LARGEST):
        return value
    return _whole(value)


def _each(check: _Check) -> _Check:
    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise BadEvent(f"not a list: {value!r:.40}")
        return tuple(map(check, value))

    return checked


def _numbers(value: Any) -> tuple[float, ...]:
    if type(value) is list and set(map(type, value)) == {float}:  # nearly always, and much faster
        return tuple(value)
    return _each(_number)(value)


def _others(value: Any) -> dict[int, Other]:
    if type(value) is not dict or not all(k.isascii() and k.isdigit() for k in value):
        raise BadEvent(f"not optimizers by their numbers: {value!r:.40}")
    shape = _shape_of(Other)
    return {_whole(int(k)): _read(Other, shape, v, lambda name: None) for k, v in value.items()}


_CHECKS: dict[str, _Check] = {
    "int": _whole, "int | None": _whole_or_none,
    "float": _number, "float | None": _or_none(_number),
    "str": _text, "str | None": _or_none(_text),
    "tuple[str, ...]": _each(_text), "tuple[float, ...]": _numbers,
    "tuple[int | None, ...]": _each(_whole_or_none),
    "Mapping[int, Other] | None": _or_none(_others),
}
"""By annotation, as text: Python 3.9 can't evaluate `int | None`."""
_AS_IT_IS = {"float": float, "float | None": float, "str": str, "str | None": str}


class _Shape:
    """The fields of one class."""

    def __init__(self, cls: type) -> None:
        self.checks: dict[str, tuple[type | None, _Check]] = {}
        """By name: a value of just this type is right as it is; the check for any other."""
        self.needed: list[str] = []
        """Those without which a line is no event of this kind."""
        self.or_null: dict[str, None] = {}
        """Those that may be missing in a line though they have no default."""
        self.left_out: list[tuple[str, Any]] = []
        """(name, default) of those that are not written where they have their default."""
        self.written: list[str] = []
        """The names of the others."""
        self.named: str | None = None
        """The name of the field whose values stand among the others."""
        for one in fields(cls):
            if one.name == "t":
                self.checks["t"] = (None, _time)
                self.needed.append("t")
            elif one.type == "Named":
                self.named = one.name
            else:
                self._add(cls, one.name, str(one.type), one.default)

    def _add(self, cls: type, name: str, kind: str, default: Any) -> None:
        if kind not in _CHECKS:
            raise TypeError(f"{cls.__name__}.{name}: no check for fields of type {kind}")
        self.checks[name] = (_AS_IT_IS.get(kind), _CHECKS[kind])
        if default is None or default == ():
            self.left_out.append((name, default))
            return
        self.written.append(name)
        if default is MISSING and kind.endswith("None"):
            self.or_null[name] = None
        elif default is MISSING:
            self.needed.append(name)


_shapes: dict[type, _Shape] = {}


def _shape_of(cls: type) -> _Shape:
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _Shape(cls)
    return shape


def _put(record: Any, shape: _Shape, out: dict[str, Any]) -> None:
    for name in shape.written:
        out[name] = getattr(record, name)
    for name, default in shape.left_out:
        value = getattr(record, name)
        if isinstance(value, dict):
            each = out[name] = {}
            for key, other in value.items():
                _put(other, _shape_of(type(other)), each.setdefault(str(key), {}))
        elif value is not None and value != default:
            out[name] = value
    if shape.named is not None:
        out.update(apart(getattr(record, shape.named)))


def _read(cls: type, shape: _Shape, data: Any, unknown: Callable[[str], None]) -> Any:
    if type(data) is not dict:
        raise BadEvent(f"not an object: {data!r:.40}")
    checks, named = shape.checks, {}
    found: dict[str, Any] = dict(shape.or_null)
    for name, value in data.items():
        check = checks.get(name)
        if check is not None:
            found[name] = value if type(value) is check[0] else check[1](value)
        elif name == "kind":
            continue
        elif shape.named is not None and (value is None or number(value) is not None):
            named[name] = number(value)
        else:
            unknown(name)
    for name in shape.needed:
        if name not in found:
            raise BadEvent(f"without {name}")
    if shape.named is not None:
        found[shape.named] = named
    # What __init__ would do, at a fraction of its cost. Missing fields are the class's defaults.
    record = object.__new__(cls)
    object.__setattr__(record, "__dict__", found)
    return record
