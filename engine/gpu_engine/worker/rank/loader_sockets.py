"""The folder for the sockets over which loader workers hand tensors to their rank.

Each worker would make one of its own in the temporary folder (multiprocessing's `resource_sharer`),
and it would stay there: workers that live over all epochs are ended by a signal when the rank ends.
A folder that the rank has made before them is used by all of them, and goes with the rank.
"""

from __future__ import annotations

import contextlib
import shutil

_folder: str | None = None


def prepare() -> None:
    """Make the folder. Call it before the first worker is started."""
    from multiprocessing import util

    global _folder
    with contextlib.suppress(OSError):  # a full disk: the workers will say so
        _folder = util.get_temp_dir()


def remove() -> None:
    """Remove the folder, in a rank that ends without what Python does at the end of a process."""
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
