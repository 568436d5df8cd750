"""The folder that all users of a machine share: where it is, whether it can be used, setting it up.

Root makes it once. It has two folders, `claims/` (leases) and `line/` (places of waiting runs), in
which anybody may make files and nobody may remove another's (the sticky bit). Where it was never
set up, runs of different users don't know of each other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, reason
from gpu_engine.devices.leases import held

DEFAULT = Path("/var/lib/gpu-panel")
VARIABLE = "GPU_PANEL_SHARED"
"""The environment variable that names another folder; empty means none."""

_ROOT = 0
_OPEN_TO_ALL = 0o1777


class Shared(NamedTuple):
    """A shared folder."""

    path: Path
    claims: Path
    """The folder of leases."""
    line: Path
    """The folder of places of waiting runs."""
    lock: Path
    """See `held.alone`."""


def _at(path: Path) -> Shared:
    return Shared(path, path / "claims", path / "line", path / "lock")


def where() -> Path | None:
    """Where the folder is, or would be; None if `GPU_PANEL_SHARED` is empty."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return DEFAULT
    return expanded(given).absolute() if given else None


def find() -> Shared | None:
    """The shared folder; None if there is none or it can't be used, see `why_not`."""
    path = where()
    return _at(path) if path is not None and _wrong(path) is None else None


def why_not() -> str | None:
    """Why the folder that is there can't be used, and what would do; None if it can be, or if
    there is none."""
    path = where()
    if path is None or (not os.path.lexists(path) and VARIABLE not in os.environ):
        return None
    return None if (wrong := _wrong(path)) is None else (
        f"the folder that users share is not used, so runs of other users are not seen: {wrong}. "
        f"Root can set it up: {_command(path)}")


def set_up(path: Path | None = None) -> Shared:
    """Make the folder, or put its owners and modes right. May be repeated; what is in it stays.

    Raises UserError: if the caller is not root, if others could replace the folder, if something
    else has its name, or if its file system has no locks.
    """
    path = path if path is not None else where()
    if path is None:
        raise UserError(f"{VARIABLE} is empty, which means that there is no shared folder: unset "
                        "it, or name the folder")
    if os.geteuid() != _ROOT:
        raise UserError(f"only root can set up a folder that all users trust: {_command(path)}")
    if not path.is_absolute() or ".." in path.parts:
        raise UserError(f"{path}: give the whole path of the folder, without \"..\"")
    box = _at(path)
    try:
        if (wrong := _replaceable(path.parents)) is not None:
            raise UserError(f"the shared folder can't be set up: {wrong}. Choose another place")
        for folder, mode in ((path, 0o755), (box.claims, _OPEN_TO_ALL), (box.line, _OPEN_TO_ALL)):
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise UserError(f"{folder} is not a folder: remove it and try again")
            folder.mkdir(mode=0o700, exist_ok=True)
            _give_to_root(folder, os.O_DIRECTORY, mode)
        _give_to_root(box.lock, os.O_CREAT, 0o666)
        with held.alone(box.lock):
            trial = held.make(box.claims, {})
        live = any(file.live for file in held.read(box.claims) if file.path == trial.path)
        trial.close()
    except OSError as error:
        raise UserError(f"{error.filename or path}: {reason(error)}") from error
    if not live:
        raise UserError(f"{path}: its file system has no locks that others see. Choose a folder on "
                        "a local disk, such as ext4, xfs or btrfs")
    return box


def _give_to_root(path: Path, flags: int, mode: int) -> None:
    """Never through a symlink."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        os.fchown(fd, _ROOT, _ROOT)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _wrong(path: Path) -> str | None:
    """Why the folder can't be used."""
    box = _at(path)
    if (wrong := _replaceable([box.line, box.claims, path, *path.parents])) is not None:
        return wrong
    for folder in (box.claims, box.line):
        if (mode := stat.S_IMODE(folder.stat().st_mode)) != _OPEN_TO_ALL:
            return f"{folder} has the mode {mode:04o}, not {_OPEN_TO_ALL:04o}"
    return None if box.lock.is_file() else f"{box.lock} is not there"


def _replaceable(folders: Sequence[Path]) -> str | None:
    """Why somebody besides root could put something else in the place of one of these folders, of
    which each is in the next. In a sticky one, such as /tmp, nobody can."""
    for path in reversed(folders):
        try:
            found = os.lstat(path)
        except OSError as error:
            return f"{path}: {reason(error)}"
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is {'a symlink' if stat.S_ISLNK(found.st_mode) else 'not a folder'}"
        if found.st_uid != _ROOT:
            return f"{path} belongs to uid {found.st_uid}, not to root"
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            return f"others than root may replace what is in {path} (its mode is {mode:04o})"
    return None


def _command(path: Path) -> str:
    return "sudo gpu-engine queue --set-up-shared" + ("" if path == DEFAULT else f" {path}")
