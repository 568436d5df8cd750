"""The folder that all users of a machine share: where it is, whether it can be trusted, setting it
up.

Root makes it once. It has two folders, `claims/` and `line/`, in which anybody may make files and
nobody may remove another's (the sticky bit). It is trusted only if nobody but root could put
something else in its place. Otherwise it is not used: runs of different users then don't know of
each other, as on a machine where it was never set up.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.box import notices
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, reason

DEFAULT = Path("/var/lib/gpu-panel")
VARIABLE = "GPU_PANEL_SHARED"
"""The environment variable that names another folder; empty means none."""

_CLAIMS, _LINE = "claims", "line"
_OPEN_TO_ALL = 0o1777
_ROOT = 0
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Box:
    """A shared folder that was found to be trustworthy."""

    path: Path

    @property
    def claims(self) -> Path:
        """The folder of claims on devices."""
        return self.path / _CLAIMS

    @property
    def line(self) -> Path:
        """The folder of places in the line of waiting runs."""
        return self.path / _LINE


def where() -> Path | None:
    """Where the folder is, or would be; None if `GPU_PANEL_SHARED` is empty."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return DEFAULT
    return expanded(given).absolute() if given else None


def find() -> Box | None:
    """The shared folder; None if there is none or it can't be trusted, see `why_not`."""
    path = where()
    return Box(path) if path is not None and _wrong(path) is None else None


def why_not() -> str | None:
    """Why the folder that is there can't be used, and what would do; None if it can be, or if
    there is none."""
    path = where()
    if path is None or (not os.path.lexists(path) and VARIABLE not in os.environ):
        return None
    wrong = _wrong(path)
    if wrong is None:
        return None
    return (f"the folder that users share is not used, so runs of other users are not seen: "
            f"{wrong}. Root can set it up: {_command(path)}")


def set_up(path: Path | None = None) -> Box:
    """Make the folder, or put its owners and modes right. May be repeated; what is in it stays.

    Raises UserError: if the caller is not root, if others could replace the folder, if something
    else has its name, or if the file system can't do what notices need.
    """
    path = path if path is not None else where()
    if path is None:
        raise UserError(f"{VARIABLE} is empty, which means that there is no shared folder: unset "
                        "it, or name the folder")
    if os.geteuid() != _ROOT:
        raise UserError(f"only root can set up a folder that all users trust: {_command(path)}")
    if not path.is_absolute() or ".." in path.parts:
        raise UserError(f"{path}: give the whole path of the folder, without \"..\"")
    try:
        wrong = _wrong_above(path)
        if wrong is not None:
            raise UserError(f"the shared folder can't be set up: {wrong}. Choose another place")
        _make(path, 0o755)
        for name in (_CLAIMS, _LINE):
            _make(path / name, _OPEN_TO_ALL)
    except OSError as error:
        raise UserError(f"{error.filename or path}: {reason(error)}") from error
    wrong = _wrong(path)
    if wrong is not None:
        raise UserError(f"the shared folder can't be set up: {wrong}")
    box = Box(path)
    for folder in (box.claims, box.line):
        problem = notices.unsupported(folder)
        if problem is not None:
            raise UserError(f"{folder}: its file system does not do: {problem}. Choose a folder on "
                            "a local disk, such as ext4, xfs or btrfs")
    return box


def _make(path: Path, mode: int) -> None:
    """A folder of root's with this mode, whatever it was before. Never through a symlink."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UserError(f"{path} is not a folder: remove it and try again")
    path.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, _ROOT, _ROOT)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _wrong(path: Path) -> str | None:
    """Why the folder can't be trusted."""
    wrong = _wrong_above(path)
    if wrong is None:
        wrong = _not_roots(path)
    for name in (_CLAIMS, _LINE):
        wrong = wrong or _not_roots(path / name, open_to_all=True)
    return wrong


def _wrong_above(path: Path) -> str | None:
    """Who besides root could rename one of the folders above, and put another in its place."""
    for parent in reversed(path.parents):
        wrong = _not_roots(parent)
        if wrong is not None:
            return wrong
    return None


def _not_roots(path: Path, *, open_to_all: bool = False) -> str | None:
    """Why this is not a folder in which only root can replace what root has put there. A sticky
    folder such as /tmp is one."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{path}: {reason(error)}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is {'a symlink' if stat.S_ISLNK(found.st_mode) else 'not a folder'}"
    if found.st_uid != _ROOT:
        return f"{path} belongs to uid {found.st_uid}, not to root"
    mode = stat.S_IMODE(found.st_mode)
    if open_to_all and mode != _OPEN_TO_ALL:
        return f"{path} has the mode {mode:04o}, not {_OPEN_TO_ALL:04o}"
    if mode & _BY_OTHERS and not mode & stat.S_ISVTX:
        return f"others than root may replace what is in {path} (its mode is {mode:04o})"
    return None


def _command(path: Path) -> str:
    given = "" if path == DEFAULT else f" {path}"
    return f"sudo gpu-engine queue --set-up-shared{given}"
