"""Converting events to and from the JSON objects in the lines of a rank's file.

How a field is checked and written follows from its annotation in `schema`. Standard library and
Python 3.9 syntax only, like `schema`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from .schema import KINDS, Collective, Event, Other, rename_reserved  # relative: see `writer`

_T = TypeVar("_T")


class BadEvent(ValueError):
    """A line that is not an event, or has a field of a wrong type."""


def to_dict(event: Event) -> dict[str, object]:
    """The JSON object of an event. Numbers that are not finite are still floats in it."""
    out: dict[str, object] = {"t": round(event.t, 3), "kind": event.kind}
    _put(event, _shape_of(type(event)), out)
    return out


def from_dict(data: object, unknown: Callable[[str], None] = lambda name: None) -> Event | None:
    """The event in a JSON object; None if its kind is not known here.

    `unknown` is called with the name of each unknown kind or field, which is left out. Raises
    BadEvent if the object is not an event or a field has a wrong type.
    """
    if type(data) is not dict or type(data.get("kind")) is not str:
        raise BadEvent("not an event")
    cls = KINDS.get(data["kind"])
    if cls is None:
        unknown(data["kind"])
        return None
    return _read(cls, _shape_of(cls), data, unknown)


def number(value: object) -> float | None:
    """A number from an event's JSON, as a float ("NaN" as nan); None if it is not a number."""
    try:
        return _number(value)
    except BadEvent:
        return None


def json_safe(value: object) -> object:
    """`value` with every float that is not finite replaced by a string, as strict JSON needs it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    return value


# --- what a class's annotations say -----------------------------------------------------------

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LARGEST = 1 << 60
_Check = Callable[[object], Any]
"""Checks a value from JSON and returns the field's value. Raises BadEvent."""


def _whole(value: object) -> int:
    if type(value) is int and 0 <= value < _LARGEST:
        return value
    raise BadEvent(f"not a whole number: {value!r:.40}")


def _number(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise BadEvent(f"not a number: {value!r:.40}")


def _text(value: object) -> str:
    if type(value) is str:
        return value
    raise BadEvent(f"not a text: {value!r:.40}")


def _time(value: object) -> float:
    found = _number(value)
    if math.isfinite(found):
        return found
    raise BadEvent("not a time")


def _or_none(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _whole_or_none(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value < _LARGEST):
        return value
    return _whole(value)


def _each(check: Callable[[object], _T]) -> Callable[[object], tuple[_T, ...]]:
    def checked(value: object) -> tuple[_T, ...]:
        if type(value) is not list:
            raise BadEvent(f"not a list: {value!r:.40}")
        return tuple(map(check, value))

    return checked


def _numbers(value: object) -> tuple[float, ...]:
    if type(value) is list and set(map(type, value)) == {float}:  # nearly always, and much faster
        return tuple(value)
    return _each(_number)(value)


def _by_number(cls: type) -> _Check:
    def checked(value: object) -> dict[int, Any]:
        if type(value) is not dict or not all(k.isascii() and k.isdigit() for k in value):
            raise BadEvent(f"not by their numbers: {value!r:.40}")
        shape = _shape_of(cls)
        return {_whole(int(k)): _read(cls, shape, v, lambda name: None) for k, v in value.items()}

    return checked


def _flag(value: object) -> bool:
    if type(value) is bool:
        return value
    raise BadEvent(f"not true or false: {value!r:.40}")


_CHECKS: dict[str, _Check] = {
    "bool": _flag, "int": _whole, "int | None": _whole_or_none,
    "float": _number, "float | None": _or_none(_number),
    "str": _text, "str | None": _or_none(_text),
    "tuple[str, ...]": _each(_text), "tuple[float, ...]": _numbers,
    "tuple[int | None, ...]": _each(_whole_or_none),
    "tuple[float | None, ...]": _each(_or_none(_number)),
    "Mapping[int, Other] | None": _or_none(_by_number(Other)),
    "Mapping[int, Collective] | None": _or_none(_by_number(Collective)),
}
"""The check for each annotation, which is a text: Python 3.9 can't evaluate `int | None`."""
_AS_IT_IS = {"float": float, "float | None": float, "str": str, "str | None": str}


class _Shape:
    """How the fields of one class are checked and written."""

    def __init__(self, cls: type) -> None:
        self.checks: dict[str, tuple[type | None, _Check]] = {}
        """By field name: a type whose values need no check, and the check for all others."""
        self.needed: list[str] = []
        """The fields that every line of this kind must have."""
        self.or_null: dict[str, None] = {}
        """The fields that may be missing in a line though they have no default."""
        self.left_out: list[tuple[str, Any]] = []
        """(name, default) of the fields that are not written if they have their default."""
        self.written: list[str] = []
        """The names of the fields that are always written."""
        self.named: str | None = None
        """The name of the field of type `Named`, whose values stand beside the other fields."""
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


def _put(record: object, shape: _Shape, out: dict[str, object]) -> None:
    for name in shape.written:
        out[name] = getattr(record, name)
    for name, default in shape.left_out:
        value = getattr(record, name)
        if isinstance(value, dict):
            each: dict[str, dict[str, object]] = {}
            for key, other in value.items():
                _put(other, _shape_of(type(other)), each.setdefault(str(key), {}))
            out[name] = each
        elif value is not None and value != default:
            out[name] = value
    if shape.named is not None:
        out.update(rename_reserved(getattr(record, shape.named)))


def _read(cls: type, shape: _Shape, data: object, unknown: Callable[[str], None]) -> Any:
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
    # The same as calling the class, but much faster. A missing field is found as class attribute.
    record = object.__new__(cls)
    object.__setattr__(record, "__dict__", found)
    return record
