"""Waiting until a file in a folder is replaced, instead of looking at it again and again."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.readable import readable

_MOVED_TO = 0x80  # linux/inotify.h


class Changes:
    """Tells when a file of a folder is replaced by `files.write_atomic`. It is told by the kernel
    (inotify), and where that has no way to tell it, as on macOS or of another machine's files, a
    wait lasts its full time: whoever waits looks afterwards in any case."""

    def __init__(self, folder: Path) -> None:
        """From now on. Raises nothing."""
        self._file = _watch(folder) if procs.LINUX else None

    def wait(self, seconds: float) -> None:
        """Return when a file has been replaced since the last call, after `seconds` at the latest.
        """
        if self._file is None:
            time.sleep(seconds)
            return
        if readable(self._file, seconds):
            os.read(self._file, 65536)

    def close(self) -> None:
        """Watch no longer."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _watch(folder: Path) -> int | None:
    """An inotify descriptor; None where there can be none, as with too many of them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "inotify_init1"):
        return None
    file = libc.inotify_init1(os.O_CLOEXEC)
    if file >= 0 and libc.inotify_add_watch(file, os.fsencode(folder), _MOVED_TO) < 0:
        os.close(file)
        return None
    return file if file >= 0 else None
