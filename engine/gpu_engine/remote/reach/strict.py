"""A dataclass out of JSON that another machine has sent: its types, and bounds on all of it.

Unlike `common.records`, which reads what this program wrote, it forgives nothing: what is missing
or of another type spoils the whole. Only a key that is not known is passed over, as a newer
version may send more.
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import dataclasses
import json
import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")

TEXT = 1 << 16
"""Characters of one text, at most."""
ITEMS = 4096
"""Entries of one list or table, at most."""
_DEPTH = 12

Text = Callable[[str], str]


class BadMessage(Exception):
    """What came is not what it should be; says where and what."""


def loads(line: bytes) -> Any:
    """JSON without NaN and infinities. Raises BadMessage."""
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise BadMessage(f"not JSON: {type(err).__name__}") from None


def dumps(value: Any) -> bytes:
    """One line of JSON, its newline with it."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def plain(value: Any) -> Any:
    """A record as JSON has it: bytes as base64, what is not a number as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read(cls: type[R], data: object, text: Text = str) -> R:
    """The record of `cls` that `data`, of JSON, holds. `text` is applied to every text in it.
    Raises BadMessage."""
    return _record(cls, data, text, cls.__name__, 0)


def _no_constant(name: str) -> None:
    raise ValueError(name)


@cache
def _hints(cls: type) -> tuple[tuple[str, Any, bool], ...]:
    hints, nothing = get_type_hints(cls), dataclasses.MISSING
    return tuple((f.name, hints[f.name], f.default is nothing and f.default_factory is nothing)
                 for f in dataclasses.fields(cls) if f.init)


def _record(cls: Any, data: object, text: Text, where: str, depth: int) -> Any:
    if not isinstance(data, dict) or depth > _DEPTH:
        raise BadMessage(f"{where}: expected a table")
    values = {}
    for name, hint, required in _hints(cls):
        if name in data:
            values[name] = _value(hint, data[name], text, f"{where}.{name}", depth + 1)
        elif required:
            raise BadMessage(f"{where}.{name} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, text: Text, where: str, depth: int) -> Any:
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple(value, text, where)
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, text, where, depth)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in args or isinstance(value, bool) not in map(_is_bool, args):
            raise BadMessage(f"{where}: unexpected {str(value)[:40]!r}")
        return value
    if origin in (Union, types.UnionType):
        return _optional(args, value, text, where, depth)
    if origin is tuple:
        return _tuple(args, value, text, where, depth)
    if origin in (dict, collections.abc.Mapping):
        return _table(args, value, text, where, depth)
    raise TypeError(f"{where}: no rule for {hint}")


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _optional(args: tuple[Any, ...], value: Any, text: Text, where: str, depth: int) -> Any:
    """`X | None`: the one kind of union that messages have."""
    inner, = (a for a in args if a is not type(None))
    return None if value is None else _value(inner, value, text, where, depth)


def _tuple(args: tuple[Any, ...], value: Any, text: Text, where: str, depth: int) -> Any:
    same = len(args) == 2 and args[1] is Ellipsis
    if not isinstance(value, list) or len(value) > ITEMS or not (same or len(value) == len(args)):
        raise BadMessage(f"{where}: expected a list")
    each = [args[0]] * len(value) if same else args
    return tuple(_value(h, v, text, f"{where}[{i}]", depth + 1)
                 for i, (h, v) in enumerate(zip(each, value, strict=True)))


def _table(args: tuple[Any, ...], value: Any, text: Text, where: str, depth: int) -> Any:
    if not isinstance(value, dict) or len(value) > ITEMS:
        raise BadMessage(f"{where}: expected a table")
    return {_text(k, text, where): _value(args[1], v, text, f"{where}.{k[:40]}", depth + 1)
            for k, v in value.items()}


def _whole(value: Any, text: Text, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise BadMessage(f"{where}: expected a whole number")
    return value


def _number(value: Any, text: Text, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise BadMessage(f"{where}: expected a number")
    return float(value)


def _bool(value: Any, text: Text, where: str) -> bool:
    if not isinstance(value, bool):
        raise BadMessage(f"{where}: expected true or false")
    return value


def _text(value: Any, text: Text, where: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT:
        raise BadMessage(f"{where}: expected a text of at most {TEXT:,} characters")
    return text(value)


def _bytes(value: Any, text: Text, where: str) -> bytes:
    if not isinstance(value, str):
        raise BadMessage(f"{where}: expected base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BadMessage(f"{where}: expected base64") from None


def _any(value: Any, text: Text, where: str, depth: int = 0) -> Any:
    """Plain values as a spec has them: texts, numbers, lists and tables of them."""
    if depth > _DEPTH:
        raise BadMessage(f"{where}: nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, text, where)
    if isinstance(value, int):
        return _whole(value, text, where)
    if isinstance(value, float):
        return _number(value, text, where)
    if isinstance(value, list | dict) and len(value) <= ITEMS:
        if isinstance(value, list):
            return [_any(v, text, where, depth + 1) for v in value]
        return {_text(k, text, where): _any(v, text, where, depth + 1) for k, v in value.items()}
    raise BadMessage(f"{where}: unexpected value")


_SIMPLE: dict[Any, Callable[[Any, Text, str], Any]] = {
    int: _whole, float: _number, bool: _bool, str: _text, bytes: _bytes, object: _any}
