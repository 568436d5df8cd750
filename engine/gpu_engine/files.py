"""Writing files so that a reader never sees half of one. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

WRITING, DELETING = ".writing-", ".deleting-"
"""Beginnings of the names of folders that are not whole yet, or not any more."""


def write_atomic(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` by `text` in one step: temporary name, fsync, rename.

    A symlink is written through, so that a preset kept elsewhere stays linked. Raises OSError,
    and then leaves what was there.
    """
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of strict JSON. Raises ValueError for a value that is not finite."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def overwrite(path: Path, text: str) -> None:
    """Put `text` in the place of what is in `path`, within the blocks that it has already: what
    can be done on a full disk. A reader may see half of it. Raises OSError where it can't be."""
    data = text.encode()
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_temporary(folder: Path) -> None:
    """Remove what a `write_atomic` in `folder` left behind that was killed half-way."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove the folders in `folder` that somebody who is gone was writing or deleting."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith((WRITING, DELETING)):
                shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path) -> Any | None:
    """The JSON in `path`, or None where it is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
