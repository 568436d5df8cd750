"""Notices: small files by which a live process of one user tells all others something.

A notice counts as long as a process of its owner holds a write lock on it. These are the facts on
which everything here rests; each of them is the kernel's word:

- The owner is the file's owner. Only root can give a file to somebody else.
- A write lock of the kind of fcntl(2) takes a file that is open for writing, and with mode 0644
  only the owner (and root) can open it so. Others can take read locks, for as long as they like,
  but a read lock is neither counted nor in the way of anything: the owner has locked the file
  before it had a name. So nobody can keep another's notice alive, or end it. (`flock` would not do:
  whoever can read a file can lock it.)
- The kernel releases the lock when the process ends, however it ends, and when the machine does.
  So a pid in a file, which another process may have by now, or which can't be seen from another pid
  namespace or with hidepid, decides nothing. The lock is of the kind that belongs to the open file
  (F_OFD_SETLK), as the other kind is lost when the process closes any other descriptor of the file.
- A file is written and locked while it has no name (O_TMPFILE), and then gets its name in one step.
  So a name that is not locked is dead for good, and everything of one's own that is not locked may
  be removed.

Whatever else lies in the folder is passed over: other names, FIFOs, links, folders, files that
can't be read, that are too long or that say nothing sensible, files that were never locked.
Files are opened with O_NONBLOCK, which waits neither for a FIFO's writer nor for a lease (fcntl's
F_SETLEASE) on the file, and not across mounts, as a file system of a user's own may never answer.
Of each user, the first `most` live notices count, by name. What was once found to be dead or
nonsense is not opened again by the same process; the price of a name more is then that of reading
the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar, cast

from gpu_engine.common.frozen import frozen

LONGEST = 32 << 10
"""Bytes that a notice may have."""

T = TypeVar("T")

_NAME = re.compile("[0-9a-f]{32}")
_LOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length (0: all), pid."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_OURS_TO_MEND = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that come from this process or machine. To pass over a file then might be to overlook
somebody's claim. All others say something about the file, for which its owner is answerable."""


@frozen(slots=True)
class Notice(Generic[T]):
    """A live notice of any user."""

    name: str
    """The name of the file."""
    uid: int
    """Its owner."""
    inode: tuple[int, int]
    """Device and inode, which tell one file from another."""
    mark: bytes
    """Its first byte, which the owner may change, see `Posted.mark`."""
    content: T
    """The rest, which never changes, as `parse` has read it."""


class Posted:
    """A notice of this process. It counts until `close` or until the process ends."""

    def __init__(self, folder: Path, name: str, fd: int) -> None:
        self.name = name
        found = os.fstat(fd)
        self.inode = (found.st_dev, found.st_ino)
        self._folder, self._fd = folder, fd

    def mark(self, byte: bytes) -> None:
        """Change the first byte. Others see the one or the other, never something else. Raises
        OSError; the old byte is then still there."""
        assert len(byte) == 1
        os.pwrite(self._fd, byte, 0)

    def close(self) -> None:
        """Take the notice away."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            (self._folder / self.name).unlink()
        os.close(self._fd)
        self._fd = -1


def post(folder: Path, mark: bytes, content: bytes) -> Posted:
    """Post a notice: `mark`, one byte, and `content`. Raises OSError."""
    assert len(mark) == 1
    assert len(content) < LONGEST
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK))
        os.pwrite(fd, mark + content, 0)
        os.fchmod(fd, 0o644)  # whatever the umask
        name = os.urandom(16).hex()
        with _opened(folder) as at:
            # Both descriptors, as os.link else does not follow the link in /proc.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=True)
        return Posted(folder, name, fd)
    except BaseException:
        os.close(fd)
        raise


@frozen(slots=True)
class _Seen:
    """What is known of a name that may count."""

    uid: int
    inode: tuple[int, int]
    notice: Notice[object] | None
    """None: not read yet, as its owner had enough others."""


_known: dict[Path, dict[str, _Seen | None]] = {}
"""By folder and name; None: it will never count. A name keeps its owner: with the sticky bit nobody
else can remove the file, and nobody's next name can be guessed."""


def read(folder: Path, parse: Callable[[bytes], T | None], most: int) -> list[Notice[T]]:
    """All live notices, by name; of each user the first `most`.

    `parse` gets a file's content and returns None for nonsense; always the same for a folder.
    Removes dead files of the caller's own. Raises OSError if the folder can't be read or there are
    too few file descriptors.
    """
    known = _known.setdefault(folder, {})
    found: dict[tuple[int, int], Notice[T]] = {}
    counts: dict[int, int] = {}
    with _opened(folder) as at:
        listed = os.listdir(at)  # noqa: PTH208
        names = [n for n in listed
                 if (known[n] is not None if n in known else _NAME.fullmatch(n))]
        if len(known) > 2 * len(listed) + 1000:
            there = set(listed)
            known = _known[folder] = {n: s for n, s in known.items() if n in there}
        for name in sorted(names):
            seen = known.get(name)
            if seen is not None and counts.get(seen.uid, 0) >= most:
                continue
            try:
                fd = _open(at, name)
            except OSError as error:
                if error.errno in _OURS_TO_MEND:
                    raise
                # A lease on it can end, and whatever is gone costs nothing any more.
                if error.errno not in (errno.EAGAIN, errno.ENOENT):
                    known[name] = None
                continue
            try:
                seen = _recognised(fd, seen)
                if seen is not None and not _locked(fd):
                    if seen.uid == os.geteuid():
                        with contextlib.suppress(OSError):
                            os.unlink(name, dir_fd=at)
                    seen = None
                if seen is not None and counts.get(seen.uid, 0) < most:
                    seen = _read(fd, name, seen, parse)
            except OSError as error:
                if error.errno in _OURS_TO_MEND:
                    raise
                seen = None
            finally:
                os.close(fd)
            known[name] = seen
            notice = cast("Notice[T] | None", seen and seen.notice)
            if notice is not None and counts.get(notice.uid, 0) < most \
                    and notice.inode not in found:  # else a hard link to one that counts
                found[notice.inode] = notice
                counts[notice.uid] = counts.get(notice.uid, 0) + 1
    return list(found.values())


def _recognised(fd: int, before: _Seen | None) -> _Seen | None:
    """Whose file this is; None if it is not one that can be a notice. What was known of the name
    counts only if it is the same file: its owner may have put another there."""
    about = os.fstat(fd)
    inode = (about.st_dev, about.st_ino)
    if before is not None and before.inode == inode and before.uid == about.st_uid:
        return before
    if not stat.S_ISREG(about.st_mode) or not 0 < about.st_size <= LONGEST:
        return None
    return _Seen(about.st_uid, inode, None)


def _read(fd: int, name: str, seen: _Seen, parse: Callable[[bytes], T | None]) -> _Seen | None:
    """What the file says; None for nonsense. Only the first byte is read again."""
    mark, before = os.pread(fd, 1, 0), seen.notice
    if before is not None and before.mark == mark:
        return seen
    content = before.content if before is not None else parse(os.pread(fd, LONGEST, 1))
    if content is None:
        return None
    return _Seen(seen.uid, seen.inode, Notice(name, seen.uid, seen.inode, mark, content))


def unsupported(folder: Path) -> str | None:
    """What of the things that notices need this folder's file system does not do; None if it does
    all of them."""
    try:
        posted = post(folder, b"0", b"{}")
    except OSError as error:
        return f"files without a name, or locks ({error.strerror})"
    try:
        seen = any(n.inode == posted.inode for n in read(folder, lambda _: True, 1 << 20))
        return None if seen else "locks that other programs can see"
    finally:
        posted.close()


def _locked(fd: int) -> bool:
    """Whether somebody holds a write lock on the file. Takes no lock itself."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_RDLCK))
    return _LOCK.unpack(answer)[0] == fcntl.F_WRLCK


@lru_cache(maxsize=2)
def _lock(kind: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# --- opening without crossing a mount -------------------------------------------------------------

class _How(ctypes.Structure):
    """struct open_how, see openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64),
                ("resolve", ctypes.c_uint64))


_OPENAT2 = 437
"""The number of the system call on all of Linux' platforms."""
_NO_XDEV, _NO_SYMLINKS = 0x01, 0x04
_HOW = _How(_FLAGS, 0, _NO_XDEV | _NO_SYMLINKS)


def _open(at: int, name: str) -> int:
    """Open a file of a folder for reading, without waiting for whatever it is. Raises OSError."""
    call = _openat2()
    if call is None:
        return os.open(name, _FLAGS, dir_fd=at)
    while (fd := call(at, name)) < 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), name)
    return fd


@lru_cache(maxsize=1)
def _openat2() -> Callable[[int, str], int] | None:
    """The system call; None where there is none: a kernel before 5.6, or a container's filter."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    how, size = ctypes.byref(_HOW), ctypes.sizeof(_HOW)

    def openat2(at: int, name: str) -> int:
        return call(_OPENAT2, at, name.encode(), how, size)

    with _opened(Path("/")) as root:
        fd = openat2(root, ".")
        if fd >= 0:
            os.close(fd)
        elif ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            return None
    return openat2
