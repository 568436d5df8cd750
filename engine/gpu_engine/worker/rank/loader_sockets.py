"""The folder for the sockets over which loader workers hand tensors to their rank.

Each worker would make one of its own in the temporary folder (multiprocessing's `resource_sharer`),
and it would stay there: workers that live over all epochs are ended by a signal when the rank ends.
A folder that the rank has made before them is used by all of them, and goes with the rank.

The path of a socket may have 107 bytes (unix(7)). Where the temporary folder's is too
long, as some batch systems' are, or nothing can be written there, the workers would only print an
error and the rank wait for ever.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from gpu_engine.common.errors import UserError

_LONGEST = 107
_BELOW = len("/listener-12345678")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders that are tried after the temporary folder."""
_folder: str | None = None


def prepare() -> None:
    """Make the folder. Call it before the first worker is started. Raises UserError where that
    can't be."""
    from multiprocessing import process, util

    global _folder
    # Where `util.get_temp_dir` looks, which nothing public sets. A Python without it: as by hand.
    config: Any = getattr(process.current_process(), "_config", None)
    if config is None or "tempdir" in config:
        return
    _folder = _made()
    config["tempdir"] = _folder
    util.Finalize(None, remove, exitpriority=-100)  # after the workers have been ended


def remove() -> None:
    """Remove the folder: at the end of the process, and before an end without what Python does
    then."""
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)


def _made() -> str:
    """The new folder. Raises UserError."""
    first = tempfile.gettempdir()
    why = f"the path of a socket in it would have more than {_LONGEST} bytes"
    for place in (first, *_SHORT):
        if len(os.fsencode(place)) + len("/pymp-12345678") + _BELOW <= _LONGEST:
            try:
                return tempfile.mkdtemp(prefix="pymp-", dir=place)
            except OSError as err:
                why = str(err.strerror)
    raise UserError(f"TMPDIR: {first} has no room for the sockets of loader workers, and neither "
                    f"has another folder: {why}; set TMPDIR to a folder with a short path that can "
                    "be written, or train.workers = 0")
