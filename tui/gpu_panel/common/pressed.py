"""What can wait gives way to a key until that is shown.

A key passes the event loop about ten times before its effect is on the screen. Work that is done in
pieces, such as reading a long run, would come in between each time.
"""

from __future__ import annotations

import asyncio
import math
import time

SHOWN = 0.02
"""Seconds from a key to its effect on the screen, where nothing comes in between."""
_at = -math.inf


def note() -> None:
    """A key or a button was pressed just now, or a wheel turned. May be called in any thread."""
    global _at
    _at = time.monotonic()


async def shown() -> None:
    """Wait until the last key is likely to be shown, at most `SHOWN` seconds: while keys are typed
    without end, other work goes on between them."""
    left = _at + SHOWN - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)
