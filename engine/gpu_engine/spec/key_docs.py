"""What the keys of the spec mean: the docstrings of their fields, read from the schema's source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from gpu_engine.spec import schema
from gpu_engine.spec.catalog import parse


@cache
def docs() -> Mapping[str, str]:
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
