"""What `train.best` says: which value of an evaluation is the best."""

from __future__ import annotations

from gpu_engine.common.errors import Problem, SpecError


def parse_best(text: str | None) -> tuple[str, bool] | None:
    """(name of the value, whether the largest is the best): "loss" or "min:loss" → ("loss",
    False); "max:accuracy" → ("accuracy", True). Raises SpecError."""
    if not text:
        return None
    how, colon, name = text.partition(":")
    if not colon:
        return text, False
    if how not in ("min", "max") or not name:
        raise SpecError([Problem("train.best", text, "expected the name of an evaluation's value, "
                                 "min:name or max:name")])
    return name, how == "max"
