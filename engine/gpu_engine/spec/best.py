"""Parsing `train.best`: which value of an evaluation decides, and which direction is better."""

from __future__ import annotations

from gpu_engine.common.errors import Problem, SpecError


def parse_best(text: str | None) -> tuple[str, bool] | None:
    """Parse `train.best` into (name of the value, whether larger is better): "loss" and "min:loss"
    give ("loss", False), "max:accuracy" gives ("accuracy", True). None if it is not set. Raises
    SpecError."""
    if not text:
        return None
    how, colon, name = text.partition(":")
    if not colon:
        return text, False
    if how not in ("min", "max") or not name:
        raise SpecError([Problem("train.best", text, "expected the name of an evaluation's value, "
                                 "min:name or max:name")])
    return name, how == "max"
