"""Numbers in the form in which a record keeps them: losses of steps, and logged values."""

from __future__ import annotations

import math
from typing import Any, TypedDict


class LossFields(TypedDict, total=False):
    """The fields of a `Step` event about its losses."""

    loss: float
    losses: tuple[float, ...]
    loss_min: float
    loss_max: float
    loss_last: float


def loss_fields(losses: list[float], each_up_to: int) -> LossFields:
    """The fields of a step event for these losses: their mean, and each of them; of more than
    `each_up_to` losses only the smallest, the largest and the last. {} for no losses."""
    if not losses:
        return {}
    total = sum(losses)
    fields: LossFields = {"loss": short(total / len(losses))}
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
    """`value` rounded to nine digits, enough to read back the same float32."""
    return float(f"{value:.9g}")


def number(value: Any) -> float | None:
    """A logged value as a number; None if it is not a number. Waits for the GPU if it is a tensor
    on one."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
