"""No file of the panel but one uses what Textual keeps to itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gpu_panel

ALLOWED = {"_handle_exception", "_parse_extended_key", "_skip", "_writer_thread"}
"""What textual_private.py may use, which says why."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def from_elsewhere(tree: ast.AST) -> Iterator[str]:
    """Private names in imports from Textual, and private attributes of anything but self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual"):
            yield from filter(is_private, [*(node.module or "").split("."),
                                           *(one.name for one in node.names)])
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr


def own(tree: ast.AST) -> set[str]:
    """Private names that are defined or assigned in a file."""
    return {node.name for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)} | {
        node.attr for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}


@cache
def of_textual(base: type) -> set[str]:
    """The private names of one of Textual's classes; none of another class."""
    if base.__module__.partition(".")[0] != "textual":
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
    return set(filter(is_private, own(tree) | vars(base).keys()))


def of_bases(cls: type) -> set[str]:
    """The private names of Textual's classes that `cls` inherits from."""
    return set().union(*map(of_textual, cls.__mro__))


def test_private_names_of_textual_are_in_one_file():
    used: dict[str, set[str]] = {}
    for module in pkgutil.walk_packages(gpu_panel.__path__, "gpu_panel."):
        loaded = importlib.import_module(module.name)
        file = Path(inspect.getfile(loaded))
        tree = ast.parse(file.read_bytes())
        found = set(from_elsewhere(tree)) - own(tree) - {"_replace"}
        for cls in vars(loaded).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                mine = ast.parse(textwrap.dedent(inspect.getsource(cls)))
                found |= of_bases(cls) & (own(mine) | {
                    node.attr for node in ast.walk(mine) if isinstance(node, ast.Attribute)})
        if found:
            used[module.name] = found
    assert used == {"gpu_panel.textual_private": ALLOWED}
