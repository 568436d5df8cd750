"""`train.skip_steps`, in words and as numbers."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_engine.common.errors import Problem, SpecError


def parse_steps(texts: Iterable[str]) -> tuple[range, ...]:
    """Parse `train.skip_steps`: "812" is one step, "820-830" eleven. Raises SpecError."""
    out = []
    for text in texts:
        first, dash, last = text.partition("-")
        try:
            steps = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            steps = range(0)
        if not steps or steps[0] < 1:
            raise SpecError([Problem("train.skip_steps", text, "expected steps, counted from 1: "
                                     "812, or 820-830")])
        out.append(steps)
    return tuple(out)
