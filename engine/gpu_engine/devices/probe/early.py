"""A head start: the probe gets ready while the program that will ask it is still starting.

Whether there is a driver is not known for sure before the backends are imported, which takes a
while. Its device file is a good sign, and costs nothing to look for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from gpu_engine.devices.backends.driver_files import FILES, NVML, in_search_path


def begin() -> None:
    """Start the probe that `discover` will take, if this machine seems to have a driver. Raises
    nothing. It ends by itself when it is not asked anything, or the caller ends."""
    if expected(os.environ, FILES):
        from gpu_engine.devices.probe import client

        client.prepare()


def expected(environ: Mapping[str, str], files: Iterable[str]) -> bool:
    """Whether there is one of the `files`, or NVIDIA's library in a folder of LD_LIBRARY_PATH."""
    return any(map(os.path.exists, files)) or in_search_path(NVML, environ)
