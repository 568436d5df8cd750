"""The values of one key of a grid, as a person types them: `train.lr=1e-3,3e-4`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_engine.common.errors import Problem, SpecError

MOST = 1000
"""Members of a sweep."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One key that varies, with its values in order, each as text that `--set` takes."""

    key: str
    values: tuple[str, ...]


def parse(text: str) -> Axis:
    """The axis in `KEY=v1,v2,…`. A comma between brackets belongs to a value. Raises
    SpecError."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SpecError([Problem("", None, f"--grid {text!r}: expected KEY=VALUE,VALUE, for "
                                           "example train.lr=1e-3,3e-4")])
    pieces, depth = [""], 0
    for char in rest:
        depth = max(0, depth + (char in "[({") - (char in "])}"))
        if char == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += char
    values = tuple(piece.strip() for piece in pieces)
    if not all(values):
        raise SpecError([Problem(key, rest, "a value is missing")])
    return Axis(key, values)
