"""The lock on a rank's events file, so that no two processes write as the same rank."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

from ..common.kept_file import KeptFile
from ..events.paths import inside


class Claim:
    """One process's claim on a rank. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        """`path`: the rank's events file, which must exist. Nothing is claimed yet. Raises
        OSError."""
        self._file = KeptFile(*inside(path))
        self._held = False

    def acquire(self) -> bool:
        """Claim the rank. Returns False if another process holds it."""
        for _ in range(5):  # `held_by_another` in another process holds the lock for a moment
            if self._lock():
                self._held = True
                return True
            time.sleep(0.002)
        return False

    def held_by_another(self) -> bool:
        """Whether another process holds the rank. If the script has closed our file, and the claim
        with it, this claims the rank once more."""
        if self._held and self._file.ours:
            return False
        locked = self._lock()
        if locked and not self._held:
            fcntl.flock(self._file.descriptor(), fcntl.LOCK_UN)
        return locked is False

    def release(self) -> None:
        """Free the rank for other processes. Call it once, at the end."""
        self._file.close()

    def _lock(self) -> bool | None:
        """Whether the lock is ours now; None if that can't be known, as the file was closed in this
        moment."""
        try:
            fcntl.flock(self._file.descriptor(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True
