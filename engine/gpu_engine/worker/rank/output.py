"""Lets a rank's stdout and stderr survive a full disk. Both go to a file, and training must not
fail because there is no room for a line of output."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from typing import Any

_before: list[Any] = []  # kept: deleting these objects would close descriptors still in use

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Forgiving(io.FileIO):
    """A file that drops what a full disk can't take."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size, done = len(view), 0
        try:
            while done < size:  # there is no buffer above this to retry a short write
                done += super().write(view[done:]) or 0
        except OSError as err:
            if err.errno not in _FULL:
                raise
        return size


def forgive_full_disk() -> None:
    """Replace sys.stdout and sys.stderr by files that drop output on a full disk instead of
    raising. Streams without a file descriptor stay as they are."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            before = getattr(sys, name)
            before.flush()
            _before.append(before)
            raw = _Forgiving(before.fileno(), "wb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(
                raw, encoding=before.encoding, errors=before.errors, write_through=True))
