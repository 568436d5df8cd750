"""The folder that something is done in, as if it had been typed there."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_engine.common.errors import UserError, telling

_lock = threading.Lock()


@contextlib.contextmanager
def inside(folders: Sequence[str]) -> Iterator[str]:
    """Within the first of `folders` that exists, one request at a time: where a process is counts
    for all of its threads. Raises UserError."""
    with _lock:
        before = os.getcwd()  # noqa: PTH109
        with telling(f"{_first(folders)}: can't be entered"):
            os.chdir(_first(folders))
        try:
            yield os.getcwd()  # noqa: PTH109
        finally:
            os.chdir(before)


def first(folders: Sequence[str]) -> Path:
    """The first of `folders` that exists, as an absolute path; the home where none does."""
    try:
        return _first(folders).absolute()
    except (UserError, OSError):
        return Path.home()


def _first(folders: Sequence[str]) -> Path:
    found = [Path(os.path.expandvars(f)).expanduser() for f in folders] or [Path.home()]
    for path in found:
        if path.is_dir():
            return path
    raise UserError(f"there is no folder {found[0]} there; name the one that has your files "
                    "(folder in hosts.toml)")
