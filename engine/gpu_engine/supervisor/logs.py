"""The logs of ranks: limiting their size, adding notes, reading their ends.

Ranks write directly into their files, so that their last output can't get lost on the way. The
files are open for appending, so one can be cut while it is in use: the text so far (or its newest
part) is kept in NNNNN.log.1. Output that arrives within some microseconds between the last copy and
the cut is lost; this only happens to a log that grows by megabytes per second.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.files import file_inside, open_inside
from gpu_engine.events.paths import inside

_CHASE = 16
"""How often new output is copied before the file is cut in any case."""
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2  # linux/falloc.h
_libc = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger(__name__)


def bound_all(run: Path, limit: int) -> bool:
    """Limit the size of every log of a run. Returns whether there was anything to do; more is then
    likely to follow soon."""
    cut = [path for path in (*run.glob("node*.log"), *run.glob("ranks/*.log"))
           if bound(path, limit)]
    cut += [path for path in (run / "torchrun").rglob("*.log")
            if punch(run, path.relative_to(run).as_posix(), limit)]
    return bool(cut)


def punch(run: Path, name: str, limit: int) -> bool:
    """Free the disk space of a log's older part without moving its end. For torchrun's logs: they
    are not open for appending, so their writer would not notice a cut. Returns whether anything
    was freed."""
    try:
        fd = open_inside(run, name, os.O_RDWR)
    except OSError:
        return False
    try:
        stat = os.fstat(fd)
        if stat.st_blocks * 512 <= 2 * limit:
            return False
        old_part = (stat.st_size - limit) // 4096 * 4096
        mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
        return _libc.fallocate(fd, mode, ctypes.c_int64(0), ctypes.c_int64(old_part)) == 0
    finally:
        os.close(fd)


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
        left_out: int | None = None
        try:
            left_out = _keep_and_cut(fd, size, limit, path)
        except OSError as err:  # a full disk: the limit matters more than the old text
            log.warning("%s: not kept: %s", path.name, err)
            old(path).unlink(missing_ok=True)
            os.ftruncate(fd, 0)
        where = f"the output before this is in {old(path).name}" if left_out is not None else \
            "the output before this could not be kept"
        if left_out:
            where += f", except for {units.size(left_out)} before that"
        with contextlib.suppress(OSError):
            os.write(fd, f"--- {where} (run.log_mb) ---\n".encode())
        return True
    finally:
        os.close(fd)


def old(path: Path) -> Path:
    """The file that holds the log's older part."""
    return path.with_name(path.name + ".1")


def _keep_and_cut(fd: int, size: int, limit: int, path: Path) -> int:
    """Copy the newest part, then cut the log. Returns how many bytes before it were left out.
    Raises OSError."""
    begin = max(0, size - limit * 5 // 4)
    if begin:
        begin = _line_after(fd, begin)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    out = open_inside(*inside(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        at = _copy(fd, out, begin, size)
        temporary.replace(old(path))
        # Nothing slow happens between the last check and the cut, so that as little as possible
        # can arrive in between.
        for _ in range(_CHASE):
            end = os.fstat(fd).st_size
            if at == end:
                break
            if end - begin > 2 * limit:  # printed faster than copied: start over with the newest
                begin = at = _line_after(fd, end - limit * 5 // 4)
                os.ftruncate(out, 0)
                os.lseek(out, 0, os.SEEK_SET)
            at = _copy(fd, out, at, end)
        os.ftruncate(fd, 0)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(out)
    return begin


def _copy(fd: int, out: int, at: int, end: int) -> int:
    """Append the bytes from `at` to `end`. Returns the offset that was reached."""
    while at < end and (done := os.write(out, os.pread(fd, min(end - at, 1 << 20), at))):
        at += done
    return at


def _line_after(fd: int, at: int) -> int:
    """Where the next line begins; `at` itself if that is not near."""
    found = os.pread(fd, 65536, at).find(b"\n")
    return at + found + 1 if found >= 0 else at


def note(path: Path, text: str) -> None:
    """Append a line of our own, or nothing if the disk is full."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = open_inside(*inside(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(fd, "a") as file:
            file.write(text + "\n")


def tail(path: Path, size: int = 16384) -> str:
    """The end of a log as text, continued into its older part if it was cut just before."""
    end = _end(path, size)
    if len(end) < size:
        end = _end(old(path), size - len(end)) + end
    return end.decode(errors="replace")


def _end(path: Path, size: int) -> bytes:
    try:
        with file_inside(*inside(path)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""
