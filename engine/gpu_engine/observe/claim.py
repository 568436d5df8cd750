"""The lock on a rank's events file, so that no two processes write as the same rank."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ..common.files import open_inside
from ..events.paths import inside


class Claim:
    """One process's claim on a rank. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        """`path`: the rank's events file, which must exist. Nothing is claimed yet. Raises
        OSError."""
        self._file = open_inside(*inside(path))
        self._held = False

    def take(self) -> bool:
        """Claim the rank. Returns False if another process holds it."""
        for _ in range(5):  # `held_by_another` in another process holds the lock for a moment
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.002)
            else:
                self._held = True
                return True
        return False

    def held_by_another(self) -> bool:
        """Whether another process holds the rank."""
        if self._held:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError:
            return True
        return False

    def release(self) -> None:
        """Free the rank for other processes. Call it once, at the end."""
        with contextlib.suppress(OSError):
            os.close(self._file)
