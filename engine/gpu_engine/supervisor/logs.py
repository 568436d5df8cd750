"""The logs of ranks: limiting their size, adding notes, reading their ends.

Ranks write directly into their files, so that their last output can't get lost on the way. The
files are open for appending, so one can be cut while it is in use: its newest part is kept in
NNNNN.log.1. Output that arrives between the last copy and the cut is lost; this only happens to a
log that grows by megabytes per second.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from gpu_engine.common.files import end_inside, open_inside
from gpu_engine.events.paths import inside, open_to_append

_TAIL = 16 << 10
"""Bytes of a log's end in which its last words are."""

log = logging.getLogger(__name__)


def bound_all(run: Path, limit: int) -> bool:
    """Limit the size of every log of a run. Returns whether there was anything to do; more is then
    likely to follow soon."""
    cut = [bound(path, limit) for path in (*run.glob("node*.log"), *run.glob("ranks/*.log"))]
    return any(cut)


def bound(path: Path, limit: int) -> bool:
    """Cut the log if it is larger than `limit` bytes. Returns whether it was."""
    try:
        fd = open_inside(*inside(path), os.O_RDWR | os.O_APPEND)
    except OSError:
        return False
    try:
        size = os.fstat(fd).st_size
        if size <= limit:
            return False
        where = f"the output before this is in {old(path).name}"
        try:
            _keep(fd, size, limit, path)
        except OSError as err:  # a full disk: the limit matters more than the old text
            log.warning("%s: not kept: %s", path.name, err)
            old(path).unlink(missing_ok=True)
            where = "the output before this could not be kept"
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):
            os.write(fd, f"--- {where} (run.log_mb) ---\n".encode())
        return True
    finally:
        os.close(fd)


def old(path: Path) -> Path:
    """The file that holds the log's older part."""
    return path.with_name(path.name + ".1")


def _keep(fd: int, size: int, limit: int, path: Path) -> None:
    """Copy the newest whole lines of the log, of at most a quarter more than `limit`, and then what
    came meanwhile: the cut follows at once. Raises OSError."""
    at = max(0, size - limit * 5 // 4)
    if at:
        at += os.pread(fd, 1 << 16, at).find(b"\n") + 1
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    out = open_inside(*inside(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        most = at + 2 * limit  # a flood may outrun the copy
        while at < most and (part := os.pread(fd, min(most - at, 1 << 20), at)):
            at += os.write(out, part)
        temporary.replace(old(path))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(out)


def note(path: Path, text: str) -> None:
    """Append a line of our own, or nothing if the disk is full."""
    with contextlib.suppress(OSError), os.fdopen(open_to_append(path), "a") as file:
        file.write(text + "\n")


def tail(path: Path) -> str:
    """The end of a log as text, continued into its older part if it was cut just before."""
    end = end_inside(*inside(path), _TAIL)
    if len(end) < _TAIL:
        end = end_inside(*inside(old(path)), _TAIL - len(end)) + end
    return end.decode(errors="replace")
