"""Writing events: one writer a file, whole lines, one `write` a line or batch of lines.

Standard library only, and no newer than Python 3.9, as `schema`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from . import convert, schema  # relative: in a script that is observed the package has another name

_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode(event: schema.Event) -> bytes:
    """One event as a line, newline included. Numbers not finite become strings."""
    fields = convert.to_dict(event)
    try:
        text = _encoded(fields)
    except ValueError:
        text = _encoded(convert.strict(fields))
    return text.encode() + b"\n"


class EventWriter:
    """Appends events to one file; the only writer of that file."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending, mode 0600. Raises OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A writer killed mid-line leaves a tail without an end: close that line first.
        size = os.fstat(self._fd).st_size
        if size:
            with path.open("rb") as read:
                read.seek(size - 1)
                if read.read(1) != b"\n":
                    os.write(self._fd, b"\n")

    def write(self, *lines: bytes) -> None:
        """Append whole lines in one write. Raises OSError (a full disk, say)."""
        data = b"".join(lines)
        while data:
            data = data[os.write(self._fd, data):]

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


def append(path: Path, event: schema.Event) -> None:
    """Add one event to a file that another process writes, too: a whole line in one write.
    Raises OSError, where there is no such file as well."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, encode(event))
    finally:
        os.close(fd)
