"""Reading and writing files safely: nobody sees half a file, and nothing waits for a FIFO.

There are two kinds of files. A person's own ones (settings, presets, the private home) are opened
by their path, and a link stands for the file that it points to. What is *inside* a run folder is
opened by `open_inside` and what is built on it, and no link is followed there: a run folder may
come from anybody.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import shutil
import stat
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from . import procs  # relative: in an observed script the package has another name

WRITING, DELETING = ".writing-", ".deleting-"
"""Prefixes of the names of folders that are still being written, or already being deleted."""
_WRITER = re.compile(r"\.(\d{1,7})(?:\.[0-9a-f]+)?\.tmp$")
"""The pid in the name of a temporary file."""
MOST = 16 << 20
"""Bytes: a larger file is no JSON, spec or note of ours, and is not read."""
_LOOKING = 2.0
"""Seconds that who looks at a lock may take."""
_AN_HOUR = 3600.0
"""Seconds since a temporary file was last written after which its writer is gone: another program
has its pid."""


def expanded(path: str | Path) -> Path:
    """The path with ~ and ~user replaced by their folders. Where there is no such user, ~name is a
    name like any other, as in a shell; Path.expanduser raises RuntimeError."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


# --- inside a run folder --------------------------------------------------------------------------


def open_inside(folder: Path, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open the regular file `name`, such as "ranks/00000.log", that is inside `folder`, and return
    its descriptor. No link below `folder` is followed, and nothing is waited for. Raises OSError.

    flags: as for `os.open`, without O_TRUNC: what is opened for writing must be this user's own
    file with no other name, which is found out before anything in it is changed.
    """
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    with _inside(folder, name) as (last, at):
        fd = os.open(last, flags | _SAFE, mode, dir_fd=at)
        try:
            found = os.fstat(fd)
            kind = _not_a_file(found.st_mode)
            if kind is not None:
                raise OSError(errno.EINVAL, f"it is {kind}, not a file")
            if writes:
                if found.st_uid != os.geteuid():
                    raise OSError(errno.EPERM, "it belongs to another user")
                if found.st_nlink > 1:
                    raise OSError(errno.EPERM, "it has another name elsewhere (a hard link)")
                os.set_blocking(fd, True)  # a child may inherit it
        except BaseException:
            os.close(fd)
            raise
    return fd


def file_inside(folder: Path, name: str) -> BufferedReader:
    """`open_inside` for reading, as a file object. Raises OSError."""
    return os.fdopen(open_inside(folder, name), "rb")


def read_inside(folder: Path, name: str, most: int = MOST) -> bytes:
    """The content of the file `name` inside `folder`. Raises OSError, also if it has more than
    `most` bytes."""
    with file_inside(folder, name) as file:
        return read_bounded(file, most)


def end_inside(folder: Path, name: str, most: int) -> bytes:
    """The last `most` bytes of the file `name` inside `folder`, whatever its size; none if it can't
    be read."""
    try:
        with file_inside(folder, name) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
            return file.read(most)
    except OSError:
        return b""


def json_inside(folder: Path, name: str) -> object | None:
    """The JSON value in the file `name` inside `folder`; None if it is missing, unreadable, larger
    than `MOST` or not JSON."""
    try:
        # Most of what a list asks thousands of folders for is not there.
        return _json(read_inside(folder, name)) if os.path.lexists(f"{folder}/{name}") else None
    except OSError:
        return None


def write_inside(folder: Path, name: str, text: str, *, settled: bool = True) -> None:
    """Write the file `name` inside `folder` anew, in one step as `write_atomic`. Whatever has that
    name is replaced, also a link. Raises OSError; the old content is then still there."""
    with _inside(folder, name) as (last, at):
        _replace(last, at, text, 0o600, settled)


def write_json_inside(folder: Path, name: str, value: object, *, settled: bool = True) -> None:
    """Write `value` as strict JSON with `write_inside`. Raises ValueError for a float that is not
    finite, and OSError."""
    write_inside(folder, name, _strict(value), settled=settled)


def overwrite_inside(folder: Path, name: str, text: str) -> None:
    """Replace the content of the file `name` inside `folder` in the disk blocks that it already
    has: this works on a full disk, but a reader may see a half-written text. Raises OSError, also
    if `text` needs more blocks than there are."""
    data = text.encode()
    fd = open_inside(folder, name, os.O_WRONLY)
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / name))
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def why_not_inside(folder: Path, name: str) -> str | None:
    """Why `file_inside` would fail: "it is a FIFO, not a file", "permission denied"; None if it
    would work. Raises nothing."""
    try:
        os.close(open_inside(folder, name))
    except OSError as err:
        return reason(err)
    return None


_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WORDS: dict[int | None, str] = {errno.ELOOP: "it is a link, and none is followed in a run folder",
                                 errno.ENOTDIR: "it is in something else than a folder"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def _inside(folder: Path, name: str) -> Iterator[tuple[str, int | None]]:
    """How the system calls reach the file `name` inside `folder` without following a link on the
    way: (path, dir_fd). An OSError inside is raised with words for it and the whole path."""
    parts = name.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(f"{name!r} is no name inside a folder")
    last, at = f"{folder}/{parts[0]}", None
    try:
        for part in parts[1:]:
            inner = os.open(last, _FOLDER, dir_fd=at)
            if at is not None:
                os.close(at)
            last, at = part, inner
        yield last, at
    except OSError as err:
        raise OSError(err.errno, _WORDS.get(err.errno, err.strerror), f"{folder}/{name}") from None
    finally:
        if at is not None:
            os.close(at)


# --- a person's own files -------------------------------------------------------------------------


def write_atomic(path: Path, text: str, *, mode: int = 0o600, settled: bool = True) -> None:
    """Replace the content of a person's own file `path` by `text` in one step: temporary name,
    fsync, rename. A symlink stays one: the file that it points to is replaced. Raises OSError; the
    old content is then still there.

    settled: whether it has reached the disk on return. False leaves that to the system, for what
    is written again at once, or is worth nothing without what follows.
    """
    target = path.resolve() if path.is_symlink() else path
    _replace(str(target), None, text, mode, settled)


def write_json(path: Path, value: object, *, settled: bool = True) -> None:
    """Write `value` as strict JSON with `write_atomic`. Raises ValueError for a float that is not
    finite, and OSError."""
    write_atomic(path, _strict(value), settled=settled)


def _strict(value: object) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _replace(path: str, at: int | None, text: str, mode: int, settled: bool) -> None:
    """Replace what has the name `path`, seen from the folder `at`, by a file with this text."""
    place, name = os.path.split(path)
    temporary = os.path.join(  # noqa: PTH118
        place, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode,
                     dir_fd=at)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if settled:
                os.fsync(file.fileno())
        os.replace(temporary, path, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=at)
        raise


def size_of(path: Path) -> int:
    """The bytes of a file; 0 if it is not there, or that can't be told. Of a link its own."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def settle(path: Path) -> None:
    """Wait until the content of a file or folder has reached the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
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
    not there or a link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except PermissionError:
        return None
    except OSError:
        return False
    try:
        return held(fd)
    except OSError:
        return True
    finally:
        os.close(fd)


def held(fd: int) -> bool:
    """Whether another process holds the `flock` on an open file. A shared lock is taken for a
    moment to find out, so that two who look at the same time don't take each other for the holder.
    Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def take_lock(fd: int) -> bool:
    """Take the `flock` on an open file. Returns False if a process holds it. Who only looks is
    waited for, but not for long, as it may have been suspended. Raises OSError."""
    end = time.monotonic() + _LOOKING
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if held(fd) or time.monotonic() > end:
                return False
        time.sleep(0.001)


def open_file(path: Path) -> BufferedReader:
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


def user_name(uid: int) -> str:
    """The name of a user; "uid 1234" if the machine knows none, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


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
    """The JSON value in a person's own file; None if it is missing, unreadable, larger than `MOST`
    or not JSON. In a run folder: `json_inside`."""
    try:
        with open_file(path) as file:
            return _json(read_bounded(file))
    except OSError:
        return None


def read_bounded(file: BinaryIO, most: int = MOST) -> bytes:
    """All that is left in `file`. Raises OSError if that is more than `most` bytes."""
    data = file.read(min(most + 1, 1 << 16))  # as nearly all: room for `most` costs more than they
    if len(data) == 1 << 16:
        data += file.read(most + 1 - len(data))
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {size}")
    return data


def _json(data: bytes) -> object | None:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
