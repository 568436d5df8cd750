"""Turn dicts, as JSON holds them, into dataclasses; the types of a person's own dataclass, and
their texts. Standard library only: a rank imports this."""

from __future__ import annotations

import ast
import dataclasses
import sys
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from gpu_engine.common.values import ANY, Bounds, Kind, convert, kind_of

R = TypeVar("R")

UnixTime = Annotated[float, Bounds(ge=0, le=1e11)]
"""Seconds since 1970 that a clock may show: up to the year 5138."""
Seconds = Annotated[float, Bounds(ge=-1e11, le=1e11)]
"""A length of time, also one that a clock which was set has made negative."""
Whole = Annotated[int, Bounds(ge=0, le=1 << 53)]
"""A count, or a number of something."""
Pid = Annotated[int, Bounds(ge=1, le=(1 << 31) - 1)]
"""The id of one process: to `kill`, others mean many."""


_ANY_NUMBER = Bounds(ge=-1e300, le=1e300)
"""The bounds of a number of a record whose type has none: a whole one too can then be reckoned
with as a float."""


def read_record(cls: type[R], data: object, *, strict: bool = False) -> R:
    """Make an instance of the dataclass `cls` from the dict `data`, as `dataclasses.asdict` and
    JSON give it. Fields may themselves be dataclasses, or tuples of dataclasses. Keys that are not
    fields are ignored; a field that is missing or has a value of another type gets its default.
    Raises ValueError if it has none, or if `data` is not a dict; with `strict` also for every value
    of another type."""
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
        value: Any = data[field.name]
        if value is None:
            as_it_is = field.optional
        else:  # as nearly all are: a list of runs reads thousands
            as_it_is = type(value) is field.exact \
                and (field.most is None or field.least <= value <= field.most)
        if as_it_is:
            values[field.name] = value
            continue
        try:
            values[field.name] = _value(value, field, strict)
        except (ValueError, RecursionError) as err:  # the latter: nested too deeply for any field
            if field.required or strict:
                raise ValueError(f"{cls.__name__}.{field.name}: {err}") from None
    return cls(**values)


def find_record(cls: type[R], data: object) -> R | None:
    """`read_record`; None for what is none, as of a file that is not there."""
    try:
        return None if data is None else read_record(cls, data)
    except ValueError:
        return None


class _Field(NamedTuple):
    name: str
    kind: Kind
    required: bool
    optional: bool
    """Whether None is a value of it."""
    exact: Any
    """A type of which it takes every value as it is, from `least` to `most` if there are such;
    None: none."""
    least: float
    most: float | None
    record: Any
    """The dataclass that it is, or that is in its tuple; None: it is a plain value."""
    many: bool


_EXACT = {"int": int, "float": float, "str": str, "bool": bool}


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    nothing = dataclasses.MISSING
    found = []
    for f in dataclasses.fields(cls):
        if not f.init:
            continue
        hint, kind = hints[f.name], _bounded(kind_of(hints[f.name]))
        args, bounds = get_args(hint), kind.without_none.bounds
        record = next((h for h in (hint, *args)
                       if isinstance(h, type) and dataclasses.is_dataclass(h)), None)
        plain = record is None and (bounds == Bounds()
                                    or (None not in (bounds.ge, bounds.le) and bounds.gt is None))
        found.append(_Field(
            f.name, kind, f.default is nothing and f.default_factory is nothing,
            type(None) in args, _EXACT.get(kind.without_none.name) if plain else None,
            bounds.ge or 0, bounds.le, record, get_origin(hint) is tuple))
    return tuple(found)


def _bounded(kind: Kind) -> Kind:
    """The type with bounds for each number in it."""
    if kind.name in ("int", "float") and kind.bounds == Bounds():
        return dataclasses.replace(kind, bounds=_ANY_NUMBER)
    return dataclasses.replace(kind, args=tuple(map(_bounded, kind.args)))


def within_bounds(value: object, kind: Kind = ANY) -> bool:
    """Whether each number in `value`, dataclasses, structs, lists and tables with what is in them,
    is within the bounds of its field's type: for what another library has read."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return True
    if isinstance(value, (int, float)):
        return (_ANY_NUMBER if kind.bounds == Bounds() else kind.bounds).hold(value)
    inner = kind.args[-1] if kind.args else ANY
    if isinstance(value, (list, tuple)):
        return all(within_bounds(v, inner) for v in value)
    if isinstance(value, dict):
        return all(within_bounds(v, inner) for v in value.values())
    return all(within_bounds(getattr(value, name), of)
               for name, of in _kinds_of_struct(type(value)).items())


@cache
def _kinds_of_struct(cls: type) -> dict[str, Kind]:
    return {name: kind_of(hint).without_none
            for name, hint in get_type_hints(cls, include_extras=True).items()
            if get_origin(hint) is not ClassVar}


def _value(value: object, field: _Field, strict: bool) -> Any:
    """`value` as a value of the field. Raises ValueError if it does not fit."""
    if field.record is None:
        if isinstance(value, str) and field.kind.without_none.name in ("list", "tuple", "dict"):
            raise ValueError("expected a list or table")  # `convert` would parse the text
        return convert(value, field.kind)
    if not field.many:
        return read_record(field.record, value, strict=strict)
    if not isinstance(value, (list, tuple)):
        raise ValueError("expected a list")
    return tuple(read_record(field.record, v, strict=strict) for v in value)


def known_hints_of(cls: type) -> dict[str, Any]:
    """Each field's type, with `Annotated` kept. A type that can't be found at run time, as when it
    is imported only for type checkers, is Any; an annotation may raise anything."""
    try:
        return get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001
        names = vars(sys.modules.get(cls.__module__, cls))
        return {field.name: _known(field.type, names) for field in dataclasses.fields(cls)}


def _known(annotation: Any, names: dict[str, Any]) -> Any:
    alone = type("alone", (), {"__annotations__": {"it": annotation}})
    try:
        return get_type_hints(alone, dict(names), include_extras=True)["it"]
    except Exception:  # noqa: BLE001
        return Any


def text_of(annotation: Any) -> str:
    """The annotation of a dataclass's field as its source has it, or nearly so; of an `Annotated`
    its type."""
    if isinstance(annotation, str):
        text = annotation.strip("'\"")
    else:
        from inspect import formatannotation

        # Python 3.14 leaves a name that is not there at run time as a ForwardRef.
        forward = getattr(annotation, "__forward_arg__", None)
        text = forward if isinstance(forward, str) else formatannotation(annotation)
    if "Annotated" not in text:
        return text
    try:
        return ast.unparse(_Plain().visit(ast.parse(text, mode="eval")))
    except SyntaxError:
        return text


class _Plain(ast.NodeTransformer):
    """Writes `Annotated[A, …]` as `A`."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        noted = ast.unparse(node.value).rpartition(".")[2] == "Annotated"
        return node.slice.elts[0] if noted and isinstance(node.slice, ast.Tuple) else node
