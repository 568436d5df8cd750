"""The folders in which gpu-panel keeps what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded


def home() -> Path:
    """$GPU_PANEL_HOME, or gpu-panel's folder among the user's state files if that is not set.
    Raises UserError where nobody knows the user's folder."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return expanded(given).absolute()
    from platformdirs import user_state_path

    return _of_user(user_state_path)


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

    return _of_user(user_config_path)


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
    return home() / "runs"


def parts_folder() -> Path:
    """The folder of what this machine has of runs that others have started on it: never listed as
    runs, as all that they are belongs to the run that they are part of."""
    return home() / "parts"


def queue_folder() -> Path:
    """The folder of what the runs wait by that are in the queue."""
    return home() / "queue"


def leases_folder() -> Path:
    """The folder of the leases: one lock file a device, which says which run holds it."""
    return home() / "leases"
