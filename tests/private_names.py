"""Finds names that other libraries keep to themselves, in the text of programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_BY_TEXT = {"getattr", "setattr", "hasattr", "delattr"}


class Finder:
    """Looks through packages of our own, given as folders."""

    def __init__(self, packages: Sequence[Path]) -> None:
        self._files = {".".join(file.relative_to(package.parent).with_suffix("").parts): file
                       for package in packages for file in package.rglob("*.py")}

    def foreign(self) -> dict[Path, set[str]]:
        """File → the names with one leading underscore that it reaches for, and that neither it nor
        a file of ours that it imports defines."""
        return {file: self._foreign(module, file) for module, file in self._files.items()}

    def _foreign(self, module: str, file: Path) -> set[str]:
        tree = _tree(file)
        reached = {name for node in ast.walk(tree) for name in _reached(node) if _private(name)}
        return reached.difference(*map(_defined, [file, *self._imported(module, tree)]))

    def _imported(self, module: str, tree: ast.AST) -> Iterator[Path]:
        """Our own files that a file imports from."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                whence = ".".join(module.split(".")[:-node.level] if node.level else [])
                whence = ".".join(filter(None, [whence, node.module]))
                for name in (whence, *(f"{whence}.{each.name}" for each in node.names)):
                    if name in self._files:
                        yield self._files[name]


@cache
def _tree(file: Path) -> ast.AST:
    return ast.parse(file.read_text())


@cache
def _defined(file: Path) -> frozenset[str]:
    """What a file gives a name: functions, classes, variables, attributes of `self`."""
    found = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) \
                and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            found.add(node.attr)
    return frozenset(found)


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _reached(node: ast.AST) -> Iterator[str]:
    """Attributes, also by getattr and its like, and what is imported or on the way to it."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (node.module or "").split(".")
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.Import):
        for each in node.names:
            yield from each.name.split(".")
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        for word in node.args:
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                if called in _BY_TEXT:
                    yield word.value
                elif called == "import_module":
                    yield from word.value.split(".")
