"""The folders in which gpu-panel keeps what it writes."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, reason


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
