"""The folders in which gpu-panel keeps what it writes."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_engine.common.files import expanded


def home() -> Path:
    """$GPU_PANEL_HOME, or gpu-panel's folder among the user's state files if that is not set."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return expanded(given).absolute()
    from platformdirs import user_state_path

    return user_state_path("gpu-panel")


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
    gpu-panel's folder among the user's configuration if that is not set."""
    if os.environ.get("GPU_PANEL_HOME"):
        return home()
    from platformdirs import user_config_path

    return user_config_path("gpu-panel")


def runs_folder() -> Path:
    """The folder that holds the run folders."""
    return home() / "runs"


def queue_folder() -> Path:
    """The folder of what the runs wait by that are in the queue."""
    return home() / "queue"


def leases_folder() -> Path:
    """The folder of the leases: one lock file a device, which says which run holds it."""
    return home() / "leases"
