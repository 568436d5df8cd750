"""Making events of the JSON objects in the lines of a rank's file.

What a field may hold follows from its annotation in `schema`; msgspec checks it. Ranks only write
events: this is for those who read them.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from gpu_engine.events.schema import KINDS, Collective, Event, Other, Step

_Steps = TypeVar("_Steps", bound=Any)
_Whole: Any = Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]
ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding and checking raise."""
_TYPES: dict[str, Any] = {
    "bool": bool, "int": _Whole, "int | None": _Whole | None,
    "float": float, "float | None": float | None, "str": str, "str | None": str | None,
    "tuple[str, ...]": tuple[str, ...], "tuple[float, ...]": tuple[float, ...],
    "tuple[int | None, ...]": tuple[_Whole | None, ...],
    "tuple[str | None, ...]": tuple[str | None, ...],
    "tuple[float | None, ...]": tuple[float | None, ...]}
"""The type for each annotation, which is a text; an int is a whole number that fits."""
_BY_NUMBER = {"Mapping[int, Other] | None": Other, "Mapping[int, Collective] | None": Collective}
"""Annotations of records by their numbers."""
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class BadEvent(ValueError):
    """A line that is not an event, or has a field of a wrong type."""


def from_dict(data: object) -> Event | None:
    """The event in a JSON object; None if its kind is not known here. Unknown fields are left out:
    a newer version wrote them. Raises BadEvent if the object is not an event or a field has a wrong
    type."""
    if type(data) is not dict or type(data.get("kind")) is not str:
        raise BadEvent("not an event")
    cls = KINDS.get(data["kind"])
    if cls is None:
        return None
    shape = shape_of(cls)
    try:
        record: Any = msgspec.convert(with_words(data, shape), shape.record, str_keys=True)
    except ERRORS as err:
        raise BadEvent(str(err)) from None
    if cls is Step:
        for step in (record, *(record.others or {}).values()):
            placed(step)
    found = msgspec.structs.asdict(record)
    if not math.isfinite(found["t"]):
        raise BadEvent("not a time")
    for name, of in shape.records.items():
        if found[name]:
            found[name] = {number: of(**msgspec.structs.asdict(one))
                           for number, one in found[name].items()}
    if shape.named:
        found[shape.named] = {
            name: number(value) for name, value in data.items()
            if name not in shape.names and name != "kind"
            and (value is None or number(value) is not None)}
    event = object.__new__(cls)  # `t` is no argument of the class
    object.__setattr__(event, "__dict__", found)
    return event


def placed(step: _Steps) -> _Steps:
    """The same `Step` or `Other`; of losses that are fewer than its steps only the bounds and the
    last. Earlier versions left out what they did not know, so the others' steps are unknown."""
    if step.losses and len(step.losses) < step.n:
        finite = [loss for loss in step.losses if math.isfinite(loss)] or step.losses
        step.loss_min, step.loss_max, step.loss_last = min(finite), max(finite), step.losses[-1]
        step.losses = ()
    return step


def number(value: object) -> float | None:
    """A number from an event's JSON, as a float ("NaN" as nan); None if it is not a number."""
    try:
        return msgspec.convert(_number(value), float)
    except ERRORS:
        return None


# --- what a class's annotations say -----------------------------------------------------------


class Shape(NamedTuple):
    """How the fields of one class are read."""

    record: type[msgspec.Struct]
    """A struct of its fields, with their types and defaults."""
    names: frozenset[str]
    """Those of its fields."""
    numbers: frozenset[str]
    """Fields with numbers, which are words where they are not finite."""
    records: dict[str, type]
    """Fields with records by their numbers, and the class of these."""
    named: str
    """The field of type `Named`, whose values stand beside the other fields; "": there is none."""


def with_words(data: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """`data` with the words for numbers that are not finite replaced by these."""
    found = {name: _number(value) if name in shape.numbers else value
             for name, value in data.items()}
    for name, of in shape.records.items():
        if isinstance(found.get(name), dict):
            found[name] = {number: with_words(one, shape_of(of)) if isinstance(one, dict) else one
                           for number, one in found[name].items()}
    return found


def _number(value: object) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def struct_of(cls: type, tag: str | None = None, without: str = "", **types: Any
              ) -> type[msgspec.Struct]:
    """A struct with the fields of a class of `schema`. `tag`: the value of `kind`, without which it
    has none; `without`: a field that it does not have; `types`: other types for some."""
    found: list[Any] = []
    for one in fields(cls):
        kind = str(one.type)
        if one.name == without or kind == "Named":
            continue
        if kind not in _TYPES:
            raise TypeError(f"{cls.__name__}.{one.name}: no check for fields of type {kind}")
        of = types.get(one.name, _TYPES[kind])
        if one.default is not MISSING:
            found.append((one.name, of, one.default))
        else:  # one that may be unknown may be missing
            found.append((one.name, of, None) if kind.endswith("None") else (one.name, of))
    found.sort(key=len)
    return msgspec.defstruct(cls.__name__, found, gc=False, omit_defaults=True, tag=tag,
                             tag_field="kind" if tag else None, forbid_unknown_fields=bool(tag))


for _kind, _of in _BY_NUMBER.items():
    _TYPES[_kind] = dict[_Whole, struct_of(_of)] | None


@cache
def shape_of(cls: type) -> Shape:
    """How the fields of a class of `schema` are read."""
    kinds = {one.name: str(one.type) for one in fields(cls)}
    named = next((name for name, kind in kinds.items() if kind == "Named"), "")
    return Shape(struct_of(cls), frozenset(kinds.keys() - {named}),
                 frozenset(n for n, kind in kinds.items() if "float" in kind and n != "t"),
                 {n: _BY_NUMBER[kind] for n, kind in kinds.items() if kind in _BY_NUMBER}, named)
