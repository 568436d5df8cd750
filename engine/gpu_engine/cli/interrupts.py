"""Ctrl-C while a run is being started or asked to stop: it takes effect a moment later, and is not
lost. Otherwise it would end this command and leave the run going on."""

from __future__ import annotations

import signal
from types import FrameType

_noted = False


def hold() -> None:
    """From now on Ctrl-C is only noted."""
    signal.signal(signal.SIGINT, _note)


def release() -> None:
    """Ctrl-C is KeyboardInterrupt again. Raises it, if it was noted meanwhile."""
    global _noted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _noted:
        _noted = False
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    _noted = True
