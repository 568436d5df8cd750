"""Reading what another user has written: bounded, of the right type, harmless to show.

These functions raise ValueError for anything else.
"""

from __future__ import annotations

import re
import time

from gpu_engine.common.clean import clean

LONGEST = 200
"""Characters of a text that are kept."""
MOST_PID = 1 << 22
"""The kernel's largest pid (PID_MAX_LIMIT)."""

_NAME = re.compile("[0-9a-f]{32}")


def boottime() -> float:
    """Seconds since boot, the time of sleep included. Nobody can set this clock."""
    # macOS has no shared folder, but another system's clock tells no lie either.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def text(value: object) -> str:
    """A line that can be shown."""
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is not a text")
    return clean(value[:4 * LONGEST], LONGEST)


def key(value: object) -> str:
    """The key of a device, as it is: it is compared."""
    if not isinstance(value, str) or len(value) > LONGEST or clean(value) != value:
        raise ValueError("not the key of a device")
    return value


def name(value: object) -> str:
    """A random name, as `os.urandom(16).hex()` makes it."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("not a random name")
    return value


def whole(value: object, most: int) -> int:
    """A whole number from 0 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("not a whole number within its bounds")
    return value


def seconds(value: object) -> float:
    """A time since boot that is not in the future."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError("not a time")
    return min(float(value), boottime())
