"""The types of a class's fields, on every Python that a rank may run in.

`typing.get_type_hints` can't evaluate `int | None` before Python 3.10, and gives up the whole class
if one name is not there at run time. Standard library only: a rank imports this.
"""

from __future__ import annotations

import ast
import sys
from typing import Any, Union, get_type_hints


def hints_of(cls: type) -> dict[str, Any]:
    """Each field's type, with `Annotated` kept. Raises what evaluating an annotation raises."""
    if sys.version_info >= (3, 10):
        return get_type_hints(cls, include_extras=True)
    return _each(cls, forgiving=False)


def known_hints_of(cls: type) -> dict[str, Any]:
    """The same for a person's class, where an annotation may raise anything: a type that can't be
    found at run time, as when it is imported only for type checkers, is Any."""
    try:
        return hints_of(cls)
    except Exception:  # noqa: BLE001 - an annotation may raise anything
        return _each(cls, forgiving=True)


def text_of(annotation: Any) -> str:
    """The annotation of a dataclass's field as its source has it, or nearly so; of an `Annotated`
    its type."""
    if isinstance(annotation, str):
        return plain(annotation.strip("'\""))
    from inspect import formatannotation

    # Python 3.14 leaves a name that is not there at run time as a ForwardRef.
    text = getattr(annotation, "__forward_arg__", None)
    return plain(text if isinstance(text, str) else formatannotation(annotation))


def plain(text: str) -> str:
    """An annotation without what `Annotated` adds to a type."""
    if "Annotated" not in text:
        return text
    try:
        return ast.unparse(_Plain().visit(ast.parse(text, mode="eval")))
    except SyntaxError:
        return text


def _each(cls: type, *, forgiving: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names = vars(sys.modules.get(base.__module__, base))
        for name, annotation in _annotations(base).items():
            try:
                found[name] = _evaluated(annotation, names)
            except Exception:
                if not forgiving:
                    raise
                found[name] = Any
    return found


def _annotations(cls: type) -> dict[str, Any]:
    """The class's own annotations. Python 3.14 evaluates them when asked; those that it can't
    evaluate come as texts."""
    if sys.version_info >= (3, 14):
        import annotationlib

        format_ = annotationlib.Format.FORWARDREF
        return {name: text_of(one) if isinstance(one, annotationlib.ForwardRef) else one
                for name, one in annotationlib.get_annotations(cls, format=format_).items()}
    return cls.__dict__.get("__annotations__", {})  # noqa: RUF063 - Python 3.9 has nothing else


def _evaluated(annotation: Any, names: Any) -> Any:
    """The type that an annotation means. One that is quoted under `from __future__ import
    annotations` is a text within a text."""
    while isinstance(annotation, str):
        tree = ast.fix_missing_locations(_Unions().visit(ast.parse(annotation, mode="eval")))
        code = compile(tree, "<annotation>", "eval")
        annotation = eval(code, {**names, _UNION: Union})
    return annotation


_UNION = "_gpu_panel_union"


class _Plain(ast.NodeTransformer):
    """Writes `Annotated[A, …]` as `A`."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        noted = ast.unparse(node.value).rpartition(".")[2] == "Annotated"
        return node.slice.elts[0] if noted and isinstance(node.slice, ast.Tuple) else node


class _Unions(ast.NodeTransformer):
    """Writes `A | B` as `Union[A, B]`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name(_UNION, ast.Load()), both, ast.Load())
