"""Writing files so that a reader never sees half of one. Standard library only."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` by `text` in one step: temporary name, fsync, rename.

    A symlink is written through, so that a preset kept elsewhere stays linked. Raises OSError,
    and then leaves what was there.
    """
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of strict JSON. Raises ValueError for a value that is not finite."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The JSON in `path`, or None where it is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
