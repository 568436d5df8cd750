"""Numbers in the form in which a record keeps them: losses of steps, and logged values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict


class LossFields(TypedDict, total=False):
    """The fields of a `Step` event about its losses."""

    loss: float
    losses: tuple[float, ...]
    loss_min: float
    loss_max: float
    loss_last: float


def spans(losses: Sequence[float | None], each_up_to: int) -> list[slice]:
    """Parts of consecutive steps, given their losses (None: unknown), for an event each, so that
    nobody has to guess which step a loss is of: the losses of a part are all known or all unknown.
    Of more than `each_up_to` steps, which are not listed, the first bad loss has its own part."""
    if len(losses) <= each_up_to:
        cuts = [i for i in range(1, len(losses))
                if (losses[i] is None) != (losses[i - 1] is None)]
    else:
        bad = next((i for i, x in enumerate(losses) if x is not None and not math.isfinite(x)), -1)
        cuts = [bad, bad + 1] if bad >= 0 else []
    ends = [*cuts, len(losses)]
    return [slice(a, b) for a, b in zip([0, *cuts], ends) if a < b]


def loss_fields(losses: Sequence[float | None], each_up_to: int) -> LossFields:
    """The fields of an event for steps with these losses (None: unknown): their mean, and each of
    them; of more than `each_up_to`, or if some are unknown, only the smallest, the largest and the
    last. {} if none is known."""
    known = [x for x in losses if x is not None]
    if not known:
        return {}
    total = sum(known)
    fields: LossFields = {"loss": short(total / len(known))}
    if len(known) == len(losses) <= each_up_to:
        fields["losses"] = tuple(map(short, known))
    else:
        finite = known
        if not math.isfinite(total):
            finite = [x for x in known if math.isfinite(x)] or known
        fields["loss_min"], fields["loss_max"] = short(min(finite)), short(max(finite))
        fields["loss_last"] = short(known[-1])
    return fields


def short(value: float) -> float:
    """`value` rounded to nine digits, enough to read back the same float32."""
    return float(f"{value:.9g}")


def number(value: Any) -> float | None:
    """A logged value as a number; None if it is not a number, or a whole one that no float can
    hold. Waits for the GPU if it is a tensor on one."""
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - of an object of the script's, any
        return None
