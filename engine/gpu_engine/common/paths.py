"""The folders in which gpu-panel keeps what it writes."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, open_file, read_bounded, reason, user_name

_OURS = frozenset({
    "code", "copied.txt", "agents.lock", "fits.json", "hosts.toml", "leases", "notify.toml",
    "panel.json", "panel.log", "parts", "presets", "queue", "runs", "settings.toml", "ssh",
    "started", "usage"})
"""What gpu-panel makes in the home and in the folder of settings."""


serving = False
"""Whether this process answers another machine, whose runs here are in `parts_folder`."""


def home() -> Path:
    """$GPU_PANEL_HOME, or gpu-panel's folder among the user's state files if that is not set.
    Raises UserError where nobody knows the user's folder, and, as the folders below, where it is
    there and can't be read: nothing is said of runs that nobody has looked at."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return _readable(expanded(given).absolute())
    from platformdirs import user_state_path

    return _readable(_of_user(user_state_path))


@cache
def _readable(path: Path) -> Path:
    """`path`, which need not exist. Raises UserError, with what to type, if it can't be read."""
    try:
        os.scandir(path).close()
        if not os.access(path, os.X_OK):
            raise PermissionError(errno.EACCES, "", str(path))
    except FileNotFoundError:
        pass
    except OSError as err:
        cure = ""
        if isinstance(err, PermissionError):
            at = next(one for one in (path, *path.parents) if os.path.lexists(one))
            cure = f"type sudo chown -R $(id -un) {shlex.quote(str(at))} if it is yours, or "
            if at.lstat().st_uid == os.getuid():
                cure = f"type chmod u+rwx {shlex.quote(str(at))}, or "
        raise UserError(f"{path}: can't be read: {reason(err)}; {cure}set GPU_PANEL_HOME to a "
                        "folder of your own") from None
    return path


def here() -> str:
    """The folder that this process is in; "/" if it has been deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "/"


def folder(given: Path | None = None) -> Path:
    """The absolute path of a folder; None: the one that this process is in."""
    return Path(here(), given or "")


def program(name: str, within: Path | None = None) -> str | None:
    """What the first word of a command runs in the folder `within` (None: this process's): by its
    path from there, or by the PATH; None if there is nothing that can be executed."""
    try:
        return shutil.which(str(folder(within) / name) if "/" in name else name)
    except ValueError:  # it has a NUL
        return None


def settings_folder() -> Path:
    """The folder of what a person writes for all runs, as hosts.toml: $GPU_PANEL_HOME, or
    gpu-panel's folder among the user's configuration if that is not set. Raises UserError as
    `home`."""
    if os.environ.get("GPU_PANEL_HOME"):
        return home()
    from platformdirs import user_config_path

    return _readable(_of_user(user_config_path))


def _of_user(find: Callable[[str], Path]) -> Path:
    try:
        found = find("gpu-panel")
    except RuntimeError:
        found = Path()
    if not found.is_absolute():  # older platformdirs leave ~ as it is, which is a name here
        raise UserError(f"HOME is not set, and user {os.getuid()} has no home folder: set "
                        "GPU_PANEL_HOME to a folder of your own, in which gpu-panel keeps runs "
                        "and settings")
    return found


def private_folder(path: Path) -> Path:
    """Make the folder `path` of ours, and what is missing above it, each closed to others (0700)
    whatever the umask. One of ours that others could write to, as a version before may have made it
    under umask 002, is closed to them. A home in which other things are too may be a folder that a
    person has made for several: it stays as it is, and doctor says what to type. Returns `path`.
    Raises OSError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # with `parents`, mkdir gives its mode to the last part only
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    for folder in _open_ones(path):
        # What doctor tries locks with is there for a moment.
        if folder not in (home(), settings_folder()) or _OURS.issuperset(
                entry.name for entry in folder.iterdir()
                if not entry.name.startswith(".doctor-")):
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~0o077)
    return path


def _open_ones(path: Path) -> list[Path]:
    """Of `path` and what is above it in the home: what is open to others."""
    return [folder for folder in (path, *path.parents) if open_to_others(folder)
            and any(folder.is_relative_to(top) for top in (home(), settings_folder()))]


def open_to_others(folder: Path) -> bool:
    """Whether others can put something of theirs in the place of what is in a folder of this
    user's. In a sticky one, such as /tmp, they can't. Raises OSError."""
    about = folder.stat()
    return about.st_uid == os.geteuid() and bool(about.st_mode & 0o022) \
        and not about.st_mode & stat.S_ISVTX


def read_own(path: Path, most: int, *, secret: bool = False) -> bytes:
    """The content of a file of the person's own configuration, which is obeyed: nobody but the
    user and root may have written it, nor read it if it is `secret`. Raises UserError where others
    may have; OSError, also if it has more than `most` bytes."""
    with open_file(path) as file:
        private_folder(path.parent)
        about = os.fstat(file.fileno())
        mode, at, why, cure = stat.S_IMODE(about.st_mode), path, "", ""
        if about.st_uid not in (os.geteuid(), 0):
            cure, why = "sudo chown $(id -un)", f"it belongs to {user_name(about.st_uid)}"
        # Many systems have a umask of 002, so that an editor leaves the file to its group too: in a
        # folder that is closed to others that opens nothing.
        elif mode & (0o077 if secret else 0o022) and \
                path.resolve().parent.stat().st_mode & 0o077:
            cure = f"chmod {'600' if secret else 'go-w'}"
            why = f"other users can {'reach' if secret else 'write to'} it (mode {mode:04o})"
        elif still_open := _open_ones(path.parent):
            at, cure, why = still_open[0], "chmod go-w", f"others can write to {still_open[0]}"
        if why:
            cure = f"{cure} {shlex.quote(str(at))}"
            raise UserError(f"{path} is not obeyed: {why}. Look at what stands in it, then type "
                            f"{cure}", str(path), None, cure)
        return read_bounded(file, most)


def runs_folder() -> Path:
    """The folder that holds the run folders."""
    return _readable(home() / "runs")


def parts_folder() -> Path:
    """The folder of what this machine has of runs that others have started on it: never listed as
    runs, as all that they are belongs to the run that they are part of."""
    return _readable(home() / "parts")


def queue_folder() -> Path:
    """The folder of what the runs wait by that are in the queue."""
    return _readable(home() / "queue")


def leases_folder() -> Path:
    """The folder of the leases: one lock file a device, which says which run holds it."""
    return _readable(home() / "leases")
