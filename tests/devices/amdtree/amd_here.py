"""The backend for AMD on a machine whose files are below $AMD_TREE.

A file may stand for one that the driver answers with an error: it then holds "errno ENODEV". A FIFO
keeps its reader waiting. Whether a device file may be used is read from its mode, as root may use
any.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gpu_engine.devices.backends import amd

ERRNO = b"errno "
ROOT = Path(os.environ.get("AMD_TREE", "/nowhere"))
# The module is loaded anew for each machine.
_read_file = getattr(amd.read_file, "original", amd.read_file)


def read_file(path: Path) -> bytes:
    """An ordinary file. What is read is written to the file `read` at the root, a name a line, for
    tests of what is not to be read."""
    with (ROOT / "read").open("a") as log:
        log.write(f"{path.relative_to(ROOT)}\n")
    content = _read_file(path)
    if content.startswith(ERRNO):
        name = content.removeprefix(ERRNO).strip().decode()
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))
    return content


def usable(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & 0o400)


read_file.original = _read_file
amd.read_file, amd.usable = read_file, usable


class AmdHere(amd.Amd):
    root = ROOT
