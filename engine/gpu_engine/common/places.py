"""The folders in which gpu-panel keeps what it writes."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """$GPU_PANEL_HOME, or gpu-panel's folder among the user's state files if that is not set."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("gpu-panel")


def runs_folder() -> Path:
    """The folder that holds the run folders."""
    return home() / "runs"


def leases_folder() -> Path:
    """The folder of the leases: one lock file a device, which says which run holds it."""
    return home() / "leases"
