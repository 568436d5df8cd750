"""A dataclass out of what JSON holds of it. Standard library only: a rank imports this."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from gpu_engine.common.values import Kind, convert, kind_of

R = TypeVar("R")


def from_plain(cls: type[R], data: object) -> R:
    """The record of `cls`, a dataclass, that `data` holds: a dict, as `dataclasses.asdict` and
    JSON give it. Fields may be records, or tuples of records, themselves.

    A key that is no field is passed over. A field that is missing, or whose value is not of its
    type, has its default. Raises ValueError where it has none, or `data` is no dict.
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
    hints = get_type_hints(cls, include_extras=True)
    nothing = dataclasses.MISSING
    return tuple(_Field(f.name, hints[f.name], kind_of(hints[f.name]),
                        f.default is nothing and f.default_factory is nothing)
                 for f in dataclasses.fields(cls) if f.init)


def _value(value: object, hint: Any, kind: Kind) -> Any:
    """Raises ValueError where `value` is not of that type."""
    args = get_args(hint)
    record: Any = next((h for h in (hint, *args) if dataclasses.is_dataclass(h)), None)
    if record is None:
        if isinstance(value, str) and kind.plain.name in ("list", "tuple", "dict"):
            raise ValueError("expected a list or table")  # `convert` would read it, as if typed
        return convert(value, kind)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError("expected a list")
        return tuple(from_plain(record, v) for v in value)
    return None if value is None and type(None) in args else from_plain(record, value)
