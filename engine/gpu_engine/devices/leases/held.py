"""Files that count while a process of their owner lives: leases of devices, places in the queue.

A file is written and locked (`flock`) under another name, and then gets its own. So a file that
nobody has locked is dead for good, however its process ended; pids decide nothing. The name begins
with the time at which it was made: sorted by name, who came first is first. Its owner is who made
it, as the kernel says; all that stands in it is that person's word.

Other users could keep a dead file alive with a lock, and are trusted not to (docs/trust.md). What
else lies in the folder is passed over without waiting for it: FIFOs, links, folders, files that
can't be read, are too long or say nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_engine.common.clean import clean
from gpu_engine.common.files import held, remove_temporary

LONGEST = 32 << 10
"""Bytes that such a file may have."""
_PATIENCE = 10.0
"""Seconds to wait for another process to finish what takes a millisecond."""
_NAME = re.compile("[0-9]{19}-[0-9a-f]{8}")
_OURS_TO_MEND = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this process or machine: to pass over a file for them would be to overlook a lease."""


@dataclass(frozen=True, slots=True)
class Found:
    """Such a file of any user, this one's included."""

    path: Path
    uid: int
    live: bool
    said: Mapping[str, Any]

    @property
    def mine(self) -> bool:
        """Whether it is this user's."""
        return self.uid == os.geteuid()

    @property
    def made(self) -> float:
        """Unix seconds."""
        return int(self.path.name[:19]) / 1e9

    @property
    def user(self) -> str:
        """The owner's name; "uid 1234" if the machine knows none, as for a container's user."""
        try:
            return clean(pwd.getpwuid(self.uid).pw_name, 40)
        except (KeyError, OverflowError):
            return f"uid {self.uid}"


class Mine:
    """Such a file of this process: it counts until `close`, or until the process ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    def close(self) -> None:
        """Take the file away."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._fd)
            self._fd = -1


def name() -> str:
    """A name for a file that is made now."""
    return f"{time.time_ns():019d}-{os.urandom(4).hex()}"


def make(folder: Path, said: Mapping[str, Any], called: str = "") -> Mine:
    """Make a file, or put another in the place of one's own with this name. Raises OSError."""
    path = folder / (called or name())
    new = folder / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    remove_temporary(folder)
    for_all = folder.stat().st_mode & stat.S_IWOTH
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        body = json.dumps(said).encode()
        if os.write(fd, body) < len(body):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        if for_all:
            os.fchmod(fd, 0o644)  # whatever the umask
        new.rename(path)
    except BaseException:
        os.close(fd)
        new.unlink(missing_ok=True)
        raise
    return Mine(path, fd)


def read(folder: Path) -> list[Found]:
    """All such files, who came first first. Raises OSError if the folder can't be read, or if this
    process can't open more files."""
    try:
        names = sorted(filter(_NAME.fullmatch, os.listdir(folder)))  # noqa: PTH208
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            one = _read(folder / name)
        except OSError as error:
            if error.errno in _OURS_TO_MEND:
                raise
            continue
        if one is not None:
            found.append(one)
    return found


def _read(path: Path) -> Found | None:
    """None if it is nothing of the kind. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LONGEST:
            return None
        said = json.loads(os.pread(fd, LONGEST, 0))
        return Found(path, about.st_uid, held(fd), said) if isinstance(said, dict) else None
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Be the only one who looks and makes files, of those who use this lock. Raises OSError;
    TimeoutError if another has had it for too long, as a process that was stopped meanwhile."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(errno.ETIMEDOUT, "another launch, perhaps a stopped one, "
                                       "has had it locked for too long", os.fspath(lock)) from None
                time.sleep(0.005)
        yield
    finally:
        os.close(fd)
