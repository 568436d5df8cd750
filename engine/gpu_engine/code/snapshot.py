"""The code of a run as it is at one moment: what git tracks, or does not ignore, in a folder."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.code import listing
from gpu_engine.common import programs, units
from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.common.files import reason
from gpu_engine.plan.records import Code

_KEY = "run.sync"
_TIMEOUT = 60.0
"""Seconds after which git is not waited for: a .gitignore may be a FIFO."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The code as it was at one moment. An edit later changes nothing of it."""

    folder: str
    entries: tuple[listing.Entry, ...]
    """In the order of their paths."""
    contents: tuple[bytes, ...]

    @property
    def listed(self) -> bytes:
        return listing.packed(self.entries)

    @property
    def name(self) -> str:
        return listing.name_of(self.listed)

    def about(self) -> Code:
        """For the plan."""
        return Code(self.folder, len(self.entries), sum(e.size for e in self.entries), self.name)


def take(folder: Path, timeout: float = _TIMEOUT) -> Snapshot:
    """What git tracks and what it does not ignore in `folder`. Raises SpecError where git can't
    tell, or not in `timeout` seconds, and where it is more than code has."""
    found = dict(_files(folder, os.fsencode(folder), timeout=timeout))
    if len(found) > listing.MOST_FILES:
        raise _problem(folder, f"has {len(found):,} files that git does not ignore; "
                               f"{listing.MOST_FILES:,} may be sent. Add what is no code to "
                               ".gitignore")
    total = sum(info.st_size for info in found.values())
    if total > listing.LARGEST:
        largest = sorted(found, key=lambda path: found[path].st_size, reverse=True)[:3]
        named = ", ".join(f"{os.fsdecode(p)} ({units.size(found[p].st_size)})" for p in largest)
        raise _problem(folder, f"has {units.size(total)} that git does not ignore; "
                               f"{units.size(listing.LARGEST)} may be sent, as data is never moved."
                               f" The largest: {named}. Add them to .gitignore, and have the data "
                               "on the hosts")
    entries, contents = [], []
    for path in sorted(found):
        try:
            kind, data = content(folder, path)
        except OSError as err:
            raise _problem(folder, f"can't be read: {os.fsdecode(path)}: {reason(err)}") from None
        entries.append(listing.Entry(path, kind, hashlib.sha256(data).hexdigest(), len(data)))
        contents.append(data)
    taken = Snapshot(str(folder), tuple(entries), tuple(contents))
    if sum(map(len, contents)) > listing.LARGEST or len(taken.listed) > listing.LONGEST_LIST:
        raise _problem(folder, "is too large to be sent, or grows while it is read")
    return taken


def describe(folder: Path) -> Code:
    """What `take` would read, for a plan that is shown again and again: files that have not
    changed since are not read again. Raises as `take`."""
    global _looked
    state = tuple((path, i.st_ino, i.st_mode, i.st_size, i.st_mtime_ns, i.st_ctime_ns)
                  for path, i in sorted(_files(folder, os.fsencode(folder))))
    if _looked is None or _looked[0] != (folder, state):
        _looked = (folder, state), take(folder).about()
    return _looked[1]


_looked: tuple[object, Code] | None = None


def _files(top: Path, folder: bytes, below: bytes = b"", timeout: float = _TIMEOUT
           ) -> Iterator[tuple[bytes, os.stat_result]]:
    """The files below `folder`, a repository or a part of one. One inside, as of a submodule, is
    asked for its own."""
    real = {b"": True}
    folders: list[bytes] = []
    for name in _listed(top, folder, timeout):
        name = name.rstrip(b"/")
        try:
            info = os.lstat(os.path.join(folder, name))  # noqa: PTH118
        except OSError:
            continue  # tracked, and deleted
        if not _without_links(folder, name, real):
            continue  # tracked, and what was its folder is a link by now
        if stat.S_ISDIR(info.st_mode):
            folders.append(name)
        elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
            yield below + name, info
    for name in folders:
        inner = os.path.join(folder, name)  # noqa: PTH118
        if os.path.lexists(os.path.join(inner, b".git")):  # noqa: PTH118
            yield from _files(top, inner, below + name + b"/", timeout)


def _without_links(folder: bytes, name: bytes, known: dict[bytes, bool]) -> bool:
    """Whether all between `folder` and the file `name` in it are folders. `known`: those of which
    that is known, which is added to."""
    path, above = os.path.dirname(name), list[bytes]()  # noqa: PTH120
    while path not in known:
        above.append(path)
        path = os.path.dirname(path)  # noqa: PTH120
    for part in reversed(above):
        full = os.path.join(folder, part)  # noqa: PTH118
        known[part] = known[path] and stat.S_ISDIR(os.lstat(full).st_mode)
        path = part
    return known[path]


def _listed(top: Path, folder: bytes, timeout: float) -> list[bytes]:
    try:
        done = programs.ask_git(folder, "ls-files", "-z", "--cached", "--others",
                                "--exclude-standard", timeout=timeout)
    except OSError as err:
        raise _problem(top, f"can't be read: git, which says what is code there, can't be started: "
                            f"{reason(err)}") from None
    except subprocess.TimeoutExpired:
        raise _problem(top, f"can't be read: git has not said what is code there after "
                            f"{timeout:.0f} s. Take run.sync=none") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        raise _problem(top, f"can't be read: git does not say what is code there ({lines[-1][:200]}"
                            "). Start in a git repository, or take run.sync=none")
    return sorted(set(done.stdout.split(b"\0")) - {b""})


def content(folder: Path, path: bytes) -> tuple[listing.Kind, bytes]:
    """What the file `path` in `folder` is, and what is in it, up to what code may have. Raises
    OSError."""
    full = os.path.join(os.fsencode(folder), path)  # noqa: PTH118
    if stat.S_ISLNK(os.lstat(full).st_mode):
        return "link", os.readlink(full)  # noqa: PTH115
    fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is no file any more")
        return "program" if mode & 0o100 else "file", file.read(listing.LARGEST + 1)


def _problem(folder: Path, message: str) -> SpecError:
    return SpecError([Problem(_KEY, "send", f"{folder} {message}")])
