"""Files that say whether a driver may be here, looked for without importing a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping

FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's driver, of AMD's, and of either in the Windows Subsystem for Linux."""
NVML = "libnvidia-ml.so.1"
"""The library of NVIDIA's driver."""


def in_search_path(library: str, environ: Mapping[str, str]) -> bool:
    """Whether `library` is in a folder that LD_LIBRARY_PATH in `environ` names."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.exists(f"{folder}/{library}") for folder in folders if folder)  # noqa: PTH110
