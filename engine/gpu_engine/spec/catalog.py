"""Tasks and their parameters, read from source files without importing anything.

So the panel can draw a task's form, or say that there is no such task, without importing torch and
without running somebody's file. What only importing can tell (a default that is computed, a base
class from a package) is left out.

Of annotations this understands the builtin types, Path, Literal, Optional, Union and `|`, list,
tuple, dict and their older spellings in `typing`, Annotated with Bounds and Existing, an Enum from
the same file or imported by name, and a name that the module gives to any of these. A parameter of
any other type accepts every value.

So are read the docstrings of the spec's keys, from the schema.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from gpu_engine.common.errors import UserError, meant
from gpu_engine.common.files import expanded, open_file, read_bounded, reason
from gpu_engine.common.records import text_of
from gpu_engine.common.values import ANY, Bounds, Existing, Kind, json_value, kind_of
from gpu_engine.spec import schema

_ONE_AT_A_TIME = threading.Lock()
_TYPES: Mapping[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "Path": Path, "PosixPath": Path,
    "None": None, "list": list, "List": list, "tuple": tuple, "Tuple": tuple, "dict": dict,
    "Dict": dict, "Sequence": Sequence, "Iterable": Iterable, "Mapping": Mapping, "Union": Union}
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class TaskField:
    """One parameter of a task."""

    name: str
    type: str
    """The annotation as it is written, without limits: "int", "str | None"."""
    default: Any
    """None if there is no default or it is computed."""
    required: bool
    help: str
    """The docstring under the field; "" if there is none."""
    kind: Kind = ANY
    """The type of its value, as far as the source tells."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task class as its source shows it."""

    use: str
    name: str
    doc: str
    file: Path
    fields: tuple[TaskField, ...]
    whole: bool
    """Whether `fields` is complete. False: a base class that could not be read may have more."""

    def field(self, name: str) -> TaskField | None:
        """The parameter `name`; None if there is no such parameter."""
        return next((f for f in self.fields if f.name == name), None)


BUILTIN = ("gpu_engine.tasks.bytes_gpt:BytesGPT", "gpu_engine.tasks.digits:Digits",
           "gpu_engine.tasks.mnist:Mnist", "gpu_engine.tasks.vgg:Vgg")
"""The tasks that ship with the engine, in the order in which a newcomer should see them."""


def builtin() -> list[TaskInfo]:
    """The descriptions of the tasks that ship with the engine."""
    return [describe(use) for use in BUILTIN]


def describe(use: str, *, cwd: Path | None = None) -> TaskInfo:
    """Find the task `use` ("module:Class" or "path/to/file.py:Class") and describe it.

    A relative path and a module are looked up in `cwd` first, a module then in sys.path. Raises
    UserError, which says what can't be found and what there is instead.
    """
    where, sep, name = use.rpartition(":")
    if not sep or not where or not name.isidentifier():
        raise UserError(f"{use!r} is not a task: write module:Class or path/to/file.py:Class")
    cwd = cwd or Path.cwd()
    path = [str(cwd), *sys.path]
    file = _source(where, cwd, path)
    if where.endswith(".py"):
        path = [str(file.parent), *path]  # as when Python runs the file
    source = _Source.read(file, path)
    if name not in source.classes:  # a package may re-export it
        source = source.origin(name) or source
    if name not in source.classes:
        raise UserError(f"there is no class {name} in {where}; "
                        + meant(name, source.classes, "it has"))
    fields: dict[str, TaskField] = {}
    whole = _gather(source, name, fields, frozenset())
    doc = (ast.get_docstring(source.classes[name]) or "").strip()
    return TaskInfo(use, name, doc, source.file, tuple(fields.values()), whole)


@dataclass(frozen=True, slots=True)
class _Source:
    """One file: the classes it defines, and where it imports names from."""

    file: Path
    path: list[str]
    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, list[str]]]
    """For each name that `from module import name` brings in: the module, and where it is looked
    for."""
    names: dict[str, ast.expr]
    """The value of each `name = …` at the module's top level: types may be named so."""

    @classmethod
    def read(cls, file: Path, path: list[str]) -> _Source:
        tree = _parse(file)
        named = {t.id: n.value for n in tree.body if isinstance(n, ast.Assign)
                 for t in n.targets if isinstance(t, ast.Name)}
        return cls(file, path, {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)},
                   {a.asname or a.name: (n.module, _searched(n.level, file, path))
                    for n in tree.body if isinstance(n, ast.ImportFrom) and n.module
                    for a in n.names if a.asname in (None, a.name)}, named)

    def origin(self, name: str, seen: frozenset[Path] = frozenset()) -> _Source | None:
        """The file that defines an imported class; None if it can't be found. `seen`: the files
        that have led here."""
        if name not in self.imported or self.file in seen:
            return None
        module, search = self.imported[name]
        try:
            found = _Source.read(_source(module, self.file.parent, search), self.path)
        except UserError:
            return None
        return found if name in found.classes else found.origin(name, seen | {self.file})


def _searched(level: int, file: Path, path: list[str]) -> list[str]:
    """Where a module is looked for that `file` imports with so many leading dots."""
    folders = file.absolute().parents
    return [str(folders[min(level, len(folders)) - 1])] if level else path


def _source(where: str, cwd: Path, search: Sequence[str]) -> Path:
    if where.endswith(".py") or "/" in where:
        file = (cwd / expanded(where))
        if not file.is_file():
            raise UserError(f"there is no file {where}" + ("" if Path(where).is_absolute()
                                                           else f" in {cwd}"))
        return file
    path: Sequence[str] | None = search
    done: list[str] = []
    spec = None
    for part in where.split("."):
        done.append(part)
        # One package at a time: importlib.util.find_spec would import the parents.
        spec = PathFinder.find_spec(".".join(done), path) if path is not None else None
        if spec is None:
            raise UserError(f"there is no module {'.'.join(done)}")
        path = spec.submodule_search_locations
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UserError(f"module {where} has no Python source")
    return Path(spec.origin)


def _parse(file: Path) -> ast.Module:
    try:
        with open_file(file) as source:
            return parse(read_bounded(source), str(file))
    except (SyntaxError, ValueError) as err:
        line = getattr(err, "lineno", None)
        raise UserError(f"{file}{f', line {line}' if line else ''}: "
                        f"not valid Python: {getattr(err, 'msg', err)}") from None
    except OSError as err:
        raise UserError(f"{file}: cannot be read: {reason(err)}") from None
    except (RecursionError, MemoryError):  # which of them, depends on what is nested
        raise UserError(f"{file}: nested too deeply to be read") from None


def parse(text: bytes, name: str) -> ast.Module:
    """`ast.parse` for several threads: Python 3.11 and 3.12 count the parser's depth once for all,
    and raise SystemError if two parse at a time (github.com/python/cpython/issues/106905). The lock
    keeps our own calls apart; other code may still be parsing, hence another try."""
    with _ONE_AT_A_TIME:
        for _ in range(9):
            try:
                return ast.parse(text, filename=name)
            except SystemError:
                continue
        return ast.parse(text, filename=name)


def _gather(source: _Source, name: str, into: dict[str, TaskField],
            seen: frozenset[tuple[Path, str]]) -> bool:
    """Collect the fields of a class `into` the dict, those of its bases first, as dataclasses order
    them. Returns False if a base class can't be found."""
    here = (source.file, name)
    if name not in source.classes or here in seen:
        return False
    node = source.classes[name]
    whole = True
    for base in (ast.unparse(b).rpartition(".")[2] for b in node.bases):
        if base in ("Task", "object"):
            continue
        where = source if base in source.classes else source.origin(base)
        whole &= where is not None and _gather(where, base, into, seen | {here})
    for i, line in enumerate(node.body):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        kind = text_of(ast.unparse(line.annotation))
        if "ClassVar" in kind or line.target.id.startswith("_"):
            continue
        default, required = _default(line.value)
        below = node.body[i + 1] if i + 1 < len(node.body) else None
        into[line.target.id] = TaskField(line.target.id, kind, default, required, _text(below),
                                         _kind(line.annotation, source))
    return whole


def _default(value: ast.expr | None) -> tuple[Any, bool]:
    if value is None:
        return None, True
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        named = {k.arg: k.value for k in value.keywords}
        if "default" in named:
            return _default(named["default"])
        factory = named.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return _default(factory.body)
        made = {"list": [], "tuple": [], "dict": {}}
        return made.get(ast.unparse(factory)) if factory is not None else None, factory is None
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "Path" \
            and len(value.args) == 1 and not value.keywords:
        return _default(value.args[0])
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) \
            and value.value.id[:1].isupper():
        return value.attr, False  # a member of an Enum, most likely
    try:
        return json_value(ast.literal_eval(value)), False
    except (ValueError, TypeError, SyntaxError):
        return None, False


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) \
            and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


# --- the type of a parameter ------------------------------------------------------------------


def _kind(annotation: ast.expr, source: _Source) -> Kind:
    """The type of a parameter; `ANY` where Python itself would refuse the annotation."""
    try:
        return kind_of(_hint(annotation, source))
    except (TypeError, ValueError, IndexError):  # int["x"], Union[()], an Enum with a member `mro`
        return ANY


def _hint(node: ast.expr, source: _Source, depth: int = 0) -> Any:
    """The type that the annotation `node` stands for, as Python would make it; Any if it is not
    understood. `source`: what the names in its module stand for."""
    if depth > _DEEPEST:
        return Any
    if isinstance(node, ast.Constant):
        if node.value is None:
            return None
        # An annotation in quotes of a file that nobody has imported yet: it may be no Python.
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            if isinstance(node.value, str):
                return _hint(ast.parse(node.value, mode="eval").body, source, depth + 1)
        return ... if node.value is ... else Any
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[_hint(node.left, source, depth + 1),  # noqa: UP007 - as below
                     _hint(node.right, source, depth + 1)]
    if isinstance(node, ast.Subscript):
        name = _last(node.value)
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            # One that is computed would be missing in a list that claims to be whole.
            values = tuple(map(_value, inside))
            return Any if None in values else Literal[values]
        args = tuple(_hint(n, source, depth + 1) for n in inside)
        if name == "Annotated":
            notes = [note for note in map(_limit, inside[1:]) if note is not None]
            return Annotated[(args[0], *notes)] if notes else args[0]
        if name == "Optional":
            return Union[args[0], None]  # noqa: UP007 - a type may be None here
        origin = _TYPES.get(name, Any)
        pairs = name in ("dict", "Dict", "Mapping")
        return Any if origin is Any or (pairs and len(args) != 2) else origin[args]
    name = _last(node)
    # Before the known types: a module may call its own alias "Path".
    if isinstance(node, ast.Name) and name in source.names:
        return _hint(source.names[name], source, depth + 1)
    there = source if name in source.classes else \
        source.origin(name) if isinstance(node, ast.Name) and name not in _TYPES else None
    if there is None:
        return _TYPES.get(name, Any)
    found = there.classes[name]
    # A member whose value is computed counts by its name: only the names are typed.
    members = {line.targets[0].id: _value(line.value) for line in found.body
               if isinstance(line, ast.Assign) and len(line.targets) == 1
               and isinstance(line.targets[0], ast.Name)
               and not line.targets[0].id.startswith("_")}
    is_enum = {_last(base) for base in found.bases} & {"Enum", "StrEnum", "IntEnum"}
    return Enum(name, {text: text if value is None else value for text, value in members.items()}
                ) if is_enum and members else Any


def _limit(note: ast.expr) -> Bounds | Existing | None:
    """A limit that stands beside a type; None: it is none, or is computed, which only a rank can
    do."""
    cls = {"Bounds": Bounds, "Existing": Existing}.get(_last(note.func)) \
        if isinstance(note, ast.Call) else None
    if cls is None or not isinstance(note, ast.Call):
        return None
    try:
        limit = cls(*map(_value, note.args), **{k.arg or "": _value(k.value)
                                                for k in note.keywords})
        if isinstance(limit, Bounds):
            limit.hold(1)
        return limit
    except (TypeError, ZeroDivisionError):
        return None


def _last(node: ast.expr) -> str:
    """"typing.Literal" → "Literal"."""
    return ast.unparse(node).rpartition(".")[2]


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


# --- the keys of the spec ---------------------------------------------------------------------


@cache
def key_docs() -> Mapping[str, str]:
    """The docstring of every key's field, as one line, by dotted key."""
    file = Path(schema.__file__)
    tree = parse(file.read_bytes(), str(file))
    sections = {cls.__name__: f"{name}." for name, cls in schema.SECTIONS.items()}
    sections["RunSpec"] = ""
    found = {}
    for cls in (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in sections):
        for field, told in pairwise(cls.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) \
                    and isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant):
                key = sections[cls.name] + field.target.id
                found[key] = " ".join(str(told.value.value).split())
    return found
