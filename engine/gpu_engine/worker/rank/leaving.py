"""How a rank's process ends: as any Python does, but without taking torch's modules apart.

That takes half a second, in which a finished run would still look like a running one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import zipfile
from typing import Any, NoReturn

from . import loader_sockets

PATIENCE = 120.0
"""Seconds that a rank which has failed may take to end: a thread that waits for ever must not keep
a failed run, and its GPU."""
_WRITING = 2.0
_status: int | None = None


def exit_process(status: int) -> NoReturn:
    """End the process: wait for threads, call what is registered with atexit, write what files
    still hold. For the main thread only, at the very end of the program."""
    global _status
    _status = status
    if status == 1:
        timer = threading.Timer(PATIENCE, exit_at_once, (status,))
        timer.daemon = True
        timer.start()
    sys.exit(status)


@atexit.register  # first, before anybody else's, and so called last
def _skip_the_rest() -> None:
    if _status is not None:
        write_files()
        os._exit(_status)


def exit_at_once(status: int) -> NoReturn:
    """End the process from any thread, whatever the main thread is stuck in."""
    loader_sockets.remove()
    # The main thread may be stuck in a write, and hold the file's lock.
    writing = threading.Thread(target=write_files, daemon=True)
    writing.start()
    writing.join(_WRITING)
    os._exit(status)


def write_files() -> None:
    """Write what files hold that nobody has closed, as Python does when it ends."""
    gc.unfreeze()
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects))
             if issubclass(kind, (io.IOBase, zipfile.ZipFile))}
    files = [found for found in objects if type(found) in kinds]
    files.reverse()  # the newest first, which may write into an older one
    # Text is written into another file, and so are gzip's and zip's, which have a last part that
    # only `close` writes.
    for file in sorted(files, key=_layer):
        with contextlib.suppress(Exception):
            if _layer(file) == 1:
                file.close()
            else:
                file.flush()


def _layer(file: Any) -> int:
    if isinstance(file, io.TextIOWrapper):
        return 0
    return 1 if type(file).__module__ not in ("io", "_io") else 2
