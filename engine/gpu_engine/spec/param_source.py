"""The type of a task's parameter, from the annotation in its source, without importing anything.

This understands the builtin types, Path, Literal, Optional, Union and `|`, list, tuple, dict and
their older spellings in `typing`, Annotated with Bounds and Existing, an Enum from the same file or
imported by name, and a name that the module gives to any of these. A parameter of any other type
accepts every value.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from gpu_engine.common.values import ANY, Bounds, Existing, Kind, show

_SIMPLE = {"int": "int", "float": "float", "bool": "bool", "str": "str", "Path": "path",
           "PosixPath": "path", "list": "list", "List": "list", "tuple": "tuple", "Tuple": "tuple",
           "dict": "dict", "Dict": "dict", "None": "none"}
_LISTS, _TABLES = ("list", "List", "Sequence", "Iterable"), ("dict", "Dict", "Mapping")
_ENUMS = ("Enum", "StrEnum", "IntEnum")
_DEEPEST = 20


def kind_of(node: ast.expr, source: Any, depth: int = 0) -> Kind:
    """The type that the annotation `node` stands for; `ANY` if it is not understood. `source`: what
    the names in its module stand for (`catalog._Source`)."""
    if depth > _DEEPEST:
        return ANY
    deeper = depth + 1
    if isinstance(node, ast.Constant):
        if node.value is None:
            return Kind("none")
        return kind_of(parsed, source, deeper) \
            if isinstance(node.value, str) and (parsed := _parsed(node.value)) else ANY
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([kind_of(node.left, source, deeper), kind_of(node.right, source, deeper)])
    if isinstance(node, ast.Subscript):
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(_last(node.value), inside, source, deeper)
    name = _last(node)
    if isinstance(node, ast.Name) and name in source.names:
        return kind_of(source.names[name], source, deeper)
    if isinstance(node, ast.Name) and name not in source.classes and name not in _SIMPLE:
        there = source.origin(name)
        return _enum(name, there) if there is not None else ANY
    return _enum(name, source) if name in source.classes else \
        Kind(_SIMPLE[name]) if name in _SIMPLE else ANY


def _generic(name: str, inside: list[ast.expr], source: Any, depth: int) -> Kind:
    if name == "Literal":
        values = [(show(v), v) for v in map(_value, inside) if v is not None]
        return Kind("choice", choices=tuple(values)) if len(values) == len(inside) else ANY
    if name == "Annotated":
        return _limited(kind_of(inside[0], source, depth), inside[1:])
    if name == "tuple" or name == "Tuple":
        same = len(inside) == 2 and isinstance(inside[1], ast.Constant) \
            and inside[1].value is Ellipsis
        return Kind("tuple", tuple(kind_of(n, source, depth)
                                   for n in (inside[:1] if same else inside)), same=same)
    args = [kind_of(n, source, depth) for n in inside]
    if name == "Optional":
        return _union([args[0], Kind("none")])
    if name == "Union":
        return _union(args)
    if name in _LISTS:
        return Kind("list", (args[0],))
    if name in _TABLES and len(args) == 2:
        return Kind("dict", tuple(args))
    return ANY


def _limited(kind: Kind, notes: list[ast.expr]) -> Kind:
    """`kind` with the limits that stand beside it. Those that are computed only a rank knows."""
    for note in notes:
        if not isinstance(note, ast.Call):
            continue
        given = [_value(a) for a in note.args], {k.arg or "": _value(k.value)
                                                 for k in note.keywords}
        name = _last(note.func)
        try:
            if name == "Bounds":
                bounds = Bounds(*given[0], **given[1])
                bounds.hold(1)
                kind = replace(kind, bounds=bounds)
            elif name == "Existing":
                kind = replace(kind, existing=Existing(*given[0], **given[1]))
        except (TypeError, ZeroDivisionError):
            continue
    return kind


def _union(args: list[Kind]) -> Kind:
    """The union of several types, flattened; `ANY` if one of them is `ANY`."""
    flat = [part for a in args for part in (a.args if a.name == "union" else (a,))]
    return ANY if any(a.name == "any" for a in flat) else Kind("union", tuple(flat))


def _enum(name: str, source: Any) -> Kind:
    """A choice of the Enum's members; `ANY` if the class is not an Enum."""
    node = source.classes[name]
    bases = [_last(b) for b in node.bases]
    if not any(b in _ENUMS for b in bases):
        return ANY
    members = []
    for line in node.body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 \
                and isinstance(line.targets[0], ast.Name) \
                and not line.targets[0].id.startswith("_"):
            text = line.targets[0].id
            value = _value(line.value)
            members.append((text, text if value is None else value))
    return Kind("choice", choices=tuple(members)) if members else ANY


def _last(node: ast.expr) -> str:
    """"typing.Literal" → "Literal"."""
    return ast.unparse(node).rpartition(".")[2]


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
