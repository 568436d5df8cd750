"""A file that is written beside its final name and put there when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from gpu_engine.common.errors import UserError, telling


class Aside:
    """An open file that gets its final name by `publish`. It can be written to after that, too.

    Until it is closed, nobody else can write that file in this way. What is left of a program that
    was killed is overwritten by the next.
    """

    def __init__(self, path: Path, mark: str) -> None:
        """`path`: the final name, in a folder that is made if it is missing. `mark`: a word for
        the name of the file beside it, `.MARK.exporting`. Raises UserError."""
        self.path = path
        self._beside = path.with_name(f".{mark}.exporting")
        self._published = False
        with telling(f"{path}: can't be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise UserError(f"{path} is a folder; name a file in it")
            with contextlib.suppress(FileNotFoundError):
                self._refuse_if_locked(path)
            # Opening a FIFO would wait for a reader.
            fd = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                         | os.O_NONBLOCK, 0o666)
            try:
                self._lock(fd)
                os.ftruncate(fd, 0)
            except BaseException:
                os.close(fd)
                raise
        self.file: BinaryIO = os.fdopen(fd, "w+b", buffering=1 << 16)

    def publish(self) -> None:
        """Put it under its final name. Raises OSError."""
        self.file.flush()
        if not self._published:
            os.fsync(self.file.fileno())
            self._beside.replace(self.path)
            self._published = True

    def close(self) -> None:
        """Publish and close it. Raises OSError."""
        self.publish()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        """Close it. What is not published is removed. Raises nothing."""
        with contextlib.suppress(OSError):
            if not self._published:
                self._beside.unlink()
        # What is in the buffer may not be writable.
        with contextlib.suppress(OSError, ValueError):
            self.file.close()

    def _refuse_if_locked(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._lock(fd)
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.path} is being written by another export") from None
        except OSError:
            pass  # a file system without locks
