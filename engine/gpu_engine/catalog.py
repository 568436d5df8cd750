"""Which tasks there are and what their parameters are, read from source, nothing imported.

The panel draws its form and refuses a task that is not there without paying for torch, and
without running a stranger's file. What only running it can tell (a default that is computed, a
base class from elsewhere) is left to `describe`.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from gpu_engine.errors import UserError


@dataclass(frozen=True, slots=True)
class TaskField:
    """One parameter of a task."""

    name: str
    type: str
    """The annotation as written: "int", "str | None"."""
    default: Any
    """None where it is computed or there is none."""
    required: bool
    help: str
    """The docstring under the field; "" where there is none."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task class as its source shows it."""

    use: str
    name: str
    doc: str
    file: Path
    fields: tuple[TaskField, ...]
    whole: bool
    """False: a base class from another file may have more parameters."""

    def field(self, name: str) -> TaskField | None:
        return next((f for f in self.fields if f.name == name), None)


def builtin() -> list[TaskInfo]:
    """The tasks that ship with the engine, in a newcomer's order."""
    folder = Path(__file__).parent / "tasks"
    order = ("bytes_gpt", "digits", "mnist", "vgg")
    files = sorted((p for p in folder.glob("*.py") if p.stem != "__init__"),
                   key=lambda p: (order.index(p.stem) if p.stem in order else 9, p.stem))
    found = []
    for file in files:
        classes = _classes(_parse(file))
        found += [_info(f"gpu_engine.tasks.{file.stem}:{name}", file, classes, name)
                  for name, node in classes.items()
                  if not name.startswith("_") and "Task" in _bases(node)]
    return found


def describe(use: str, *, cwd: Path | None = None, search: Sequence[str] | None = None) -> TaskInfo:
    """The task that `use` ("module:Class" or "path/to/file.py:Class") means.

    Raises UserError saying what can't be found and what there is instead.
    """
    where, sep, name = use.rpartition(":")
    if not sep or not where or not name.isidentifier():
        raise UserError(f"{use!r} names no task: write module:Class or path/to/file.py:Class")
    file = _source(where, cwd or Path.cwd(), search)
    classes = _classes(_parse(file))
    if name not in classes:
        near = difflib.get_close_matches(name, classes, n=1)
        there = f"did you mean {near[0]}?" if near else \
            "it has " + (", ".join(classes) or "no class at all")
        raise UserError(f"there is no class {name} in {where}; {there}")
    return _info(use, file, classes, name)


def _source(where: str, cwd: Path, search: Sequence[str] | None) -> Path:
    if where.endswith(".py") or "/" in where:
        file = (cwd / Path(where).expanduser())
        if not file.is_file():
            raise UserError(f"there is no file {where}" + ("" if Path(where).is_absolute()
                                                           else f" in {cwd}"))
        return file
    path: Sequence[str] | None = [str(cwd), *(search if search is not None else sys.path)]
    done: list[str] = []
    spec = None
    for part in where.split("."):
        done.append(part)
        # Step by step: importlib.util.find_spec would import the parents.
        spec = PathFinder.find_spec(".".join(done), path) if path is not None else None
        if spec is None:
            raise UserError(f"there is no module {'.'.join(done)}")
        path = spec.submodule_search_locations
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UserError(f"module {where} has no Python source")
    return Path(spec.origin)


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as err:
        line = getattr(err, "lineno", None)
        raise UserError(f"{file}{f', line {line}' if line else ''}: "
                        f"not valid Python: {getattr(err, 'msg', err)}") from None
    except (OSError, RecursionError) as err:
        raise UserError(f"{file}: cannot be read: {err}") from None


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(b).rpartition(".")[2] for b in node.bases]


def _info(use: str, file: Path, classes: dict[str, ast.ClassDef], name: str) -> TaskInfo:
    fields: dict[str, TaskField] = {}
    whole = _gather(classes, name, fields, set())
    doc = (ast.get_docstring(classes[name]) or "").strip()
    return TaskInfo(use, name, doc, file, tuple(fields.values()), whole)


def _gather(classes: dict[str, ast.ClassDef], name: str, into: dict[str, TaskField],
            seen: set[str]) -> bool:
    """Fields of the bases first, as dataclasses order them. False: a base is not in this file."""
    if name in ("Task", "object"):
        return True
    if name not in classes or name in seen:
        return False
    node = classes[name]
    whole = True
    for base in _bases(node):
        whole &= _gather(classes, base, into, seen | {name})
    for i, line in enumerate(node.body):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        kind = ast.unparse(line.annotation).strip("'\"")
        if "ClassVar" in kind or line.target.id.startswith("_"):
            continue
        default, required = _default(line.value)
        below = node.body[i + 1] if i + 1 < len(node.body) else None
        into[line.target.id] = TaskField(line.target.id, kind, default, required, _text(below))
    return whole


def _default(value: ast.expr | None) -> tuple[Any, bool]:
    if value is None:
        return None, True
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        named = {k.arg: k.value for k in value.keywords}
        if "default" in named:
            return _default(named["default"])
        return None, "default_factory" not in named
    try:
        return ast.literal_eval(value), False
    except ValueError:
        return None, False


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) \
            and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""
