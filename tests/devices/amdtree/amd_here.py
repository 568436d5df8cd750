"""The backend for AMD on a machine whose files are below $AMD_TREE.

A file may stand for one that the driver answers with an error: it then holds "errno ENODEV". A FIFO
keeps its reader waiting. Whether a device file may be used is read from its mode, as root may use
any.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gpu_engine.devices.backends.amd import Amd, Tree

ERRNO = b"errno "


class MadeTree(Tree):
    """A tree of ordinary files. What is read is written to the file `read` at its root, a name a
    line, for tests of what is not to be read."""

    def read(self, path: Path) -> bytes:
        with (self.root / "read").open("a") as log:
            log.write(f"{path.relative_to(self.root)}\n")
        said = super().read(path)
        if said.startswith(ERRNO):
            name = said.removeprefix(ERRNO).strip().decode()
            raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))
        return said

    def usable(self, path: Path) -> bool:
        return bool(path.stat().st_mode & 0o400)


class AmdHere(Amd):
    tree = MadeTree(Path(os.environ.get("AMD_TREE", "/nowhere")))
