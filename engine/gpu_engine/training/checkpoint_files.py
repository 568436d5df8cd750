"""The files of a checkpoint. They are written, hashed and read in pieces, so that no file is ever
held in memory as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_engine.runs.checkpoints import FileEntry, opened
from gpu_engine.training.checkpoint_writer import Gate
from gpu_engine.worker.rank.recorder import Progress

_PIECE = 4 << 20
_SYNC = 64 << 20
"""Bytes after which written data is synced. So the progress counts what is really on the disk, and
the final sync does not take minutes in which nothing seems to happen."""


def write(path: Path, fill: Callable[[Any], Any], progress: Progress,
          gate: Gate | None = None) -> FileEntry:
    """Make a new file, have `fill` write to it, and sync it. Returns its size and SHA-256. `gate`
    is given by the thread that writes while training goes on. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=1 << 20) as file:
        out = _Hashing(file, progress, gate)
        try:
            fill(out)
        except RuntimeError:
            if out.error is not None:
                raise out.error from None
            raise
        file.flush()
        with gate.aside() if gate is not None else contextlib.nullcontext():
            os.fsync(file.fileno())
    return {"size": out.size, "sha256": out.hash.hexdigest()}


def sync(folder: Path) -> None:
    """Sync a folder's entries to the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path, progress: Progress | None = None) -> tuple[int, str]:
    """A file's size in bytes and its SHA-256. `progress` counts the bytes read. Raises OSError."""
    hashed, size = hashlib.sha256(), 0
    piece = memoryview(bytearray(_PIECE))
    with opened(path) as file:
        if progress is not None:
            progress.total = (progress.total or 0) + os.fstat(file.fileno()).st_size
        while count := file.readinto(piece):
            hashed.update(piece[:count])
            size += count
            if progress is not None:
                progress.done += count
    return size, hashed.hexdigest()


class _Hashing:
    """A file that hashes what is written to it. It also keeps the OSError of a failed write, as
    torch.save turns a full disk into a RuntimeError without a cause."""

    def __init__(self, file: Any, progress: Progress, gate: Gate | None) -> None:
        self._file, self._progress, self._gate = file, progress, gate
        self.hash = hashlib.sha256()
        self.size = self._synced = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):  # torch writes a tensor whole, however large
            if self._gate is not None:
                self._gate.pause()
            piece = view[start:start + _PIECE]
            self.hash.update(piece)
            self.size += len(piece)
            try:
                self._file.write(piece)
                if self.size - self._synced >= _SYNC:
                    with self._gate.aside() if self._gate is not None else contextlib.nullcontext():
                        self._file.flush()
                        os.fdatasync(self._file.fileno())
                    self._synced = self.size
            except OSError as err:
                self.error = err
                raise
            self._progress.done += len(piece)
        return len(view)

    def flush(self) -> None:
        self._file.flush()
