"""Waiting for something to read, also in a process with more than 1,024 open files, where `select`
refuses.

Standard library only.
"""

from __future__ import annotations

import select


def readable(fd: int, seconds: float) -> bool:
    """Whether `fd` has something to read, or its end, within `seconds`. Raises OSError."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    found = poll.poll(max(seconds, 0) * 1000)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(f"file {fd} is not open")
    return bool(found)
