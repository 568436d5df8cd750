"""A file in a run folder that is kept open in a process whose descriptors are not ours alone.

A script may close every descriptor that it finds (`os.closerange`) and then open files of its own,
which get the same numbers. So ours are numbers that no program gets by itself, and before each use
it is made sure that the file behind the number is still ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from .files import open_inside

_HIGH = 960
"""The least number of our descriptors: below the usual limit of 1024."""


class KeptFile:
    """One file, open for as long as the process lives or until `close`."""

    def __init__(self, folder: Path, name: str, flags: int = os.O_RDONLY) -> None:
        """Open the file `name` inside `folder`, with the flags of `open_inside`. Raises OSError."""
        self._folder, self._name, self._flags = folder, name, flags
        self._open()

    def _open(self) -> None:
        low = open_inside(self._folder, self._name, self._flags)
        try:
            self._number = _moved(low)
        finally:
            os.close(low)
        self._file = _identity(self._number)

    @property
    def ours(self) -> bool:
        """Whether the number still stands for the file that was opened."""
        try:
            return _identity(self._number) == self._file
        except OSError:
            return False

    def descriptor(self) -> int:
        """Its descriptor, for use at once. It is opened anew if the script has closed it. Raises
        OSError."""
        if not self.ours:
            self._open()
        return self._number

    def close(self) -> None:
        """Close it, unless the number has become the script's."""
        if self.ours:
            with contextlib.suppress(OSError):
                os.close(self._number)


def _identity(number: int) -> tuple[int, int, int]:
    """The file and how it is open: a rank's events file is also open for reading, for its lock, and
    either may get the number that the other had."""
    found = os.fstat(number)
    return found.st_dev, found.st_ino, fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE


def _moved(low: int) -> int:
    """A second descriptor of the same file, with a high number where the process may have one, and
    else with one that is none of the standard files'."""
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
