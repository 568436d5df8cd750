"""Turn dicts, as JSON holds them, into dataclasses. Standard library only: a rank imports this."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from gpu_engine.common.hints import hints_of
from gpu_engine.common.values import Bounds, Kind, convert, kind_of

R = TypeVar("R")

UnixTime = Annotated[float, Bounds(ge=0, le=1e11)]
"""Seconds since 1970 that a clock may show: up to the year 5138."""
Whole = Annotated[int, Bounds(ge=0, le=1 << 53)]
"""A count, or a number of something."""
Pid = Annotated[int, Bounds(ge=1, le=(1 << 31) - 1)]
"""The id of one process: to `kill`, others mean many."""


def read_record(cls: type[R], data: object, *, strict: bool = False) -> R:
    """Make an instance of the dataclass `cls` from the dict `data`, as `dataclasses.asdict` and
    JSON give it. Fields may themselves be dataclasses, or tuples of dataclasses.

    Keys that are not fields are ignored. A field that is missing or has a value of another type
    gets its default. Raises ValueError if it has no default, or if `data` is not a dict; with
    `strict` also for every value of another type.
    """
    if isinstance(data, cls):
        return data
    if not isinstance(data, dict):
        raise ValueError(f"expected a table of {cls.__name__}")
    values: dict[str, Any] = {}
    for field in _fields(cls):
        if field.name not in data:
            if field.required:
                raise ValueError(f"{cls.__name__} has no {field.name}")
            continue
        try:
            values[field.name] = _value(data[field.name], field.hint, field.kind, strict)
        except (ValueError, RecursionError) as err:  # the latter: nested too deeply for any field
            if field.required or strict:
                raise ValueError(f"{cls.__name__}.{field.name}: {err}") from None
    return cls(**values)


class _Field(NamedTuple):
    name: str
    hint: Any
    kind: Kind
    required: bool


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = hints_of(cls)
    nothing = dataclasses.MISSING
    return tuple(_Field(f.name, hints[f.name], kind_of(hints[f.name]),
                        f.default is nothing and f.default_factory is nothing)
                 for f in dataclasses.fields(cls) if f.init)


def _value(value: object, hint: Any, kind: Kind, strict: bool) -> Any:
    """`value` as a field of that type. Raises ValueError if it does not fit."""
    args = get_args(hint)
    record: Any = next((h for h in (hint, *args)
                        if isinstance(h, type) and dataclasses.is_dataclass(h)), None)
    if record is None:
        if isinstance(value, str) and kind.without_none.name in ("list", "tuple", "dict"):
            raise ValueError("expected a list or table")  # `convert` would parse the text
        return convert(value, kind)
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError("expected a list")
        return tuple(read_record(record, v, strict=strict) for v in value)
    return None if value is None and type(None) in args \
        else read_record(record, value, strict=strict)
