"""What a rank records of the error that ends it."""

from __future__ import annotations

import contextlib
import traceback

from ...events import schema
from . import memory


def error_event(err: BaseException, phase: str, step: int, *, traced: bool = True) -> schema.Error:
    """That `err` ends the rank in this phase, after `step` steps. `traced`: with its traceback,
    which a person's own mistake does not need."""
    held: memory.ErrorMemory = {}
    with contextlib.suppress(Exception):  # a driver that is lost has no figures
        held = memory.of_error(err)
    text = "".join(traceback.format_exception(type(err), err, err.__traceback__)) if traced else ""
    return schema.Error(type(err).__name__, str(err) or type(err).__name__, text, phase, step,
                        **held)
