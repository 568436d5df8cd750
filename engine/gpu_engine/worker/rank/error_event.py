"""The event for the error that ends a rank."""

from __future__ import annotations

import contextlib
import traceback

from ...events import schema
from . import memory


def error_event(err: BaseException, phase: str, step: int, *, held_by: tuple[str, ...] = (),
                traced: bool = True) -> schema.Error:
    """The event for an error that ends the rank in `phase`, after `step` steps. `held_by`: the
    lines that held most memory. `traced`: include the traceback, which a person's own mistake does
    not need."""
    held: memory.ErrorMemory = {}
    with contextlib.suppress(Exception):  # reading memory fails if the driver is lost
        held = memory.of_error(err)
    text = "".join(traceback.format_exception(type(err), err, err.__traceback__)) if traced else ""
    return schema.Error(type(err).__name__, str(err) or type(err).__name__, text, phase, step,
                        held_by=held_by, **held)
