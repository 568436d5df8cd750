"""`notify.log` in the run folder: what was sent of the run and what could not be, a line each. Its
lock makes sure that one process tells of a run; that of `notify-sweep.log`, in the folder of a
sweep's first member, that one member at a time tells of the sweep.

    2026-11-22 14:03:11	failed 2 1795356191.120 4711	phone	sent

Nothing in it is a secret: an entry is named, never its address.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from gpu_engine.common.clean import clean
from gpu_engine.common.files import file_inside, open_inside

FILE, SWEEP_FILE = "notify.log", "notify-sweep.log"
SENT, NOT_WANTED = "sent", "no entry of notify.toml wants to know"
WITH_SWEEP = "told once for the sweep"
"""Results that are no trouble."""
_MOST = 256 << 10
"""Bytes of the file. Nothing is written any more once it has so many."""


class Journal:
    """The file, with its lock."""

    def __init__(self, run: Path, name: str = FILE) -> None:
        self._run, self._name = run, name
        self._fd: int | None = None

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock. Returns False if somebody else has it, unless that is to be waited for, or
        the file can't be written."""
        try:
            fd = open_inside(self._run, self._name, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Let go of the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def keys(self) -> set[str]:
        """The keys of what was told before."""
        return {key for key, _, _ in read(self._run, self._name)}

    def write(self, key: str, to: str, result: str) -> None:
        """Note how it went to tell the entry `to` of what has this key."""
        if self._fd is None:
            return
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        line = "\t".join((when, key, clean(to, 80), clean(result, 400))) + "\n"
        with contextlib.suppress(OSError):  # a full disk must not keep the others from being told
            if os.fstat(self._fd).st_size < _MOST:
                os.write(self._fd, line.encode())


def troubles(run: Path) -> list[str]:
    """A sentence for each message that was not delivered."""
    return [f"{key.partition(' ')[0]}: {to} was not notified: {result}"
            for key, to, result in read(run) if result not in (SENT, NOT_WANTED, WITH_SWEEP)]


def read(run: Path, name: str = FILE) -> list[tuple[str, str, str]]:
    """(key, entry, result) of each line, the oldest first; none where nothing was told. A key
    begins with the state that was told, or with "stalled"."""
    try:
        with file_inside(run, name) as file:
            lines = file.read(_MOST).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    rows = [line.split("\t") for line in lines]
    return [(row[1], row[2], row[3]) for row in rows if len(row) == 4]
