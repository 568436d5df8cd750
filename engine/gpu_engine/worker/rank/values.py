"""Numbers as a record keeps them: losses of steps, and values that a task or script logs."""

from __future__ import annotations

import math
from typing import Any

from ...events import schema


def loss_fields(losses: list[float], each_up_to: int) -> dict[str, Any]:
    """The fields of a step event that tell these losses: their mean and each of them; where there
    are more than `each_up_to`, the least, the largest and the last. Without losses: none."""
    if not losses:
        return {}
    total = sum(losses)
    fields: dict[str, Any] = {"loss": short(total / len(losses))}
    if len(losses) <= each_up_to:
        fields["losses"] = tuple(map(short, losses))
    else:
        finite = losses
        if not math.isfinite(total):
            finite = [x for x in losses if math.isfinite(x)] or losses
        fields["loss_min"], fields["loss_max"] = short(min(finite)), short(max(finite))
        fields["loss_last"] = short(losses[-1])
    return fields


def short(value: float) -> float:
    """`value` in nine digits: a float32 read back is the same float32."""
    return float(f"{value:.9g}")


def number(value: Any) -> float | None:
    """A logged value as a number; None where it is none. Waits for the GPU if it is a tensor on
    one."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


class ReservedNames:
    """Tells once of each set of names that an event needs for its own fields."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def warning(self, values: dict[str, Any]) -> str | None:
        """A sentence about the names in `values` that are recorded under others; None: there are
        none, or it has been told before."""
        if schema.OWN_NAMES.isdisjoint(values):
            return None
        text = schema.apart_in_words(values)
        if text is None or text in self._told:
            return None
        self._told.add(text)
        return text
