"""Turn dicts, as JSON holds them, into dataclasses. Standard library only: a rank imports this."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from gpu_engine.common.hints import hints_of
from gpu_engine.common.values import Kind, convert, kind_of

R = TypeVar("R")


def read_record(cls: type[R], data: object) -> R:
    """Make an instance of the dataclass `cls` from the dict `data`, as `dataclasses.asdict` and
    JSON give it. Fields may themselves be dataclasses, or tuples of dataclasses.

    Keys that are not fields are ignored. A field that is missing or has a value of another type
    gets its default. Raises ValueError if it has no default, or if `data` is not a dict.
    """
    if isinstance(data, cls):
        return data
    if not isinstance(data, dict):
        raise ValueError(f"expected a table of {cls.__name__}")
    values: dict[str, Any] = {}
    for field in _fields(cls):
        try:
            if field.name not in data:
                raise ValueError(f"{cls.__name__} has no {field.name}")
            values[field.name] = _value(data[field.name], field.hint, field.kind)
        except ValueError:
            if field.required:
                raise
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


def _value(value: object, hint: Any, kind: Kind) -> Any:
    """`value` as a field of that type. Raises ValueError if it does not fit."""
    args = get_args(hint)
    record: Any = next((h for h in (hint, *args) if dataclasses.is_dataclass(h)), None)
    if record is None:
        if isinstance(value, str) and kind.without_none.name in ("list", "tuple", "dict"):
            raise ValueError("expected a list or table")  # `convert` would parse the text
        return convert(value, kind)
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError("expected a list")
        return tuple(read_record(record, v) for v in value)
    return None if value is None and type(None) in args else read_record(record, value)
