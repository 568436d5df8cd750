"""Where gpu-panel keeps what it writes."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """$GPU_PANEL_HOME, else the state folder."""
    given = os.environ.get("GPU_PANEL_HOME")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("gpu-panel")


def runs_folder() -> Path:
    """Where each run has a folder."""
    return home() / "runs"


def leases_folder() -> Path:
    """Where a lock for each device says which run holds it."""
    return home() / "leases"
