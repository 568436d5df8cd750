"""Telling a person what becomes of a run. Here is where notify.toml lies: every launch asks whether
there is one, and few need more."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_engine.common import paths


def path() -> Path:
    """Where the file is, whether it exists or not."""
    return paths.settings_folder() / "notify.toml"


def exists() -> bool:
    """Whether anybody may have to be told: costs next to nothing."""
    return os.path.lexists(path())
