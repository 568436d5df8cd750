"""The types of a person's own dataclass, and their texts. Standard library only: a rank imports
this."""

from __future__ import annotations

import ast
import dataclasses
import sys
from typing import Any, get_type_hints


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
