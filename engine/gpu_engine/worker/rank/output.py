"""stdout and stderr of a rank that survive a full disk: both go to a file, and an epoch must not
be lost because a line of progress found no room."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from typing import Any

_before: list[Any] = []  # collected, they would close the descriptors that go on being used

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Forgiving(io.FileIO):
    """Drops what finds no room."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size, done = len(view), 0
        try:
            while done < size:  # nothing stands between this and the text layer
                done += super().write(view[done:]) or 0
        except OSError as err:
            if err.errno not in _FULL:
                raise
        return size


def forgive_full_disk() -> None:
    """Replace both, where they are plain files or the like; whoever prints notices nothing."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            before = getattr(sys, name)
            before.flush()
            _before.append(before)
            raw = _Forgiving(before.fileno(), "wb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(
                raw, encoding=before.encoding, errors=before.errors, write_through=True))
