"""A head start: the probe gets ready while the program that will ask it is still starting.

Whether there is a driver is not known for sure before the backends are imported, which takes a
while. Its files are a good sign, and cost nothing to look for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's driver, of AMD's, and of either in the Windows Subsystem for Linux."""
NVML = "libnvidia-ml.so.1"
"""The library of NVIDIA's driver."""


def begin() -> None:
    """Start the probe that `discover` will take, if this machine seems to have a driver. Raises
    nothing. It ends by itself when it is not asked anything, or the caller ends."""
    if expected(os.environ, FILES):
        from gpu_engine.devices.probe import client

        client.prepare()


def expected(environ: Mapping[str, str], files: Iterable[str]) -> bool:
    """Whether there is one of the `files`, or NVIDIA's library in a folder of LD_LIBRARY_PATH."""
    return any(map(os.path.exists, files)) or in_search_path(NVML, environ)


def in_search_path(library: str, environ: Mapping[str, str]) -> bool:
    """Whether `library` is in a folder that LD_LIBRARY_PATH in `environ` names."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.exists(f"{folder}/{library}") for folder in folders if folder)  # noqa: PTH110
