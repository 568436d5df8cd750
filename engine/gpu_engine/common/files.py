"""Reading and writing files safely: nobody sees half a file, and nothing waits for a FIFO.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import BinaryIO

from gpu_engine.common import procs

WRITING, DELETING = ".writing-", ".deleting-"
"""Prefixes of the names of folders that are still being written, or already being deleted."""
_WRITER = re.compile(r"\.(\d{1,7})(?:\.[0-9a-f]+)?\.tmp$")
"""The pid in the name of a temporary file."""
_AN_HOUR = 3600.0
"""Seconds since a temporary file was last written after which its writer is gone: another program
has its pid."""


def expanded(path: str | Path) -> Path:
    """The path with ~ and ~user replaced by their folders. Where there is no such user, ~name is a
    name like any other, as in a shell; Path.expanduser raises RuntimeError."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def write_atomic(path: Path, text: str, *, mode: int = 0o600, settled: bool = True) -> None:
    """Replace the content of `path` by `text` in one step: temporary name, fsync, rename.

    settled: whether it has reached the disk on return. False leaves that to the system, for what
    is written again at once, or is worth nothing without what follows.

    A symlink stays a symlink: the file that it points to is replaced. Raises OSError; the old
    content is then still there.
    """
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if settled:
                os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object, *, settled: bool = True) -> None:
    """Write `value` as strict JSON with `write_atomic`. Raises ValueError for a float that is not
    finite, and OSError."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n", settled=settled)


def settle(path: Path) -> None:
    """Wait until the content of a file or folder has reached the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def overwrite(path: Path, text: str) -> None:
    """Replace the content of `path` by `text` in the disk blocks that the file already has.

    This works on a full disk, but a reader may see a half-written text. Raises OSError, also if
    `text` needs more blocks than there are.
    """
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
    """Remove the temporary files that programs left in `folder` when they were killed. Those of a
    program that still runs stay: it may be about to rename them, and would lose what it writes."""
    for path in folder.glob(".*.tmp"):
        writer = _WRITER.search(path.name)
        with contextlib.suppress(OSError):
            if writer is None or procs.start_ticks(int(writer[1])) is None \
                    or time.time() - path.stat().st_mtime > _AN_HOUR:
                path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove the folders in `folder` that a program was writing or deleting when it ended."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith((WRITING, DELETING)):
                shutil.rmtree(path, ignore_errors=True)


def locked(path: Path) -> bool | None:
    """Whether a process holds the `flock` on this file; None if we may not open it, False if it is
    not there. A shared lock is taken for a moment to find out, so that two who look at the same
    time don't take each other for the holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return None
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def open_file(path: Path) -> BinaryIO:
    """Open `path` for reading without ever waiting: a plain `open` of a FIFO waits for a writer.
    Raises OSError, also for anything that is not a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        kind = _not_a_file(os.fstat(fd).st_mode)
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def why_not_readable(path: Path) -> str | None:
    """Why `open_file` would fail: "it is a FIFO, not a file", "permission denied"; None if it
    would work. Raises nothing."""
    try:
        open_file(path).close()
    except OSError as err:
        return reason(err)
    return None


def reason(error: OSError) -> str:
    """The text of a system error, to stand at the end of a sentence: "permission denied"."""
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]


def _not_a_file(mode: int) -> str | None:
    """What kind of thing this is, in words; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((word for test, word in _KINDS if test(mode)), "something else")


_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
          (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def read_json(path: Path) -> object | None:
    """The JSON value in `path`; None if the file is missing, unreadable or not JSON."""
    try:
        with open_file(path) as file:
            return json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
