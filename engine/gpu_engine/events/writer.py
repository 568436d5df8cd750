"""Writing events: one writer per file, and only whole lines, in one `write` per call.

Standard library and Python 3.9 syntax only, like `schema`.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

# Relative: in an observed script the package has another name.
from ..common.files import open_inside
from ..common.kept_file import KeptFile
from . import convert, paths, schema

_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode(event: schema.Event) -> bytes:
    """An event as a line, newline included. Numbers that are not finite become strings."""
    fields = convert.to_dict(event)
    try:
        text = _encoded(fields)
    except ValueError:
        text = _encoded(convert.json_safe(fields))
    return text.encode() + b"\n"


class EventWriter:
    """Appends events to one file; the only writer of that file."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; create it with mode 0600. Raises OSError."""
        self._file = KeptFile(*paths.inside(path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        # A writer that was killed mid-line left a line without its end: end it first.
        fd = self._file.descriptor()
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")

    def write(self, *lines: bytes) -> None:
        """Append whole lines in one write. Raises OSError, for example on a full disk."""
        data = b"".join(lines)
        while data:
            try:
                data = data[os.write(self._file.descriptor(), data):]
            except OSError as err:
                if err.errno != errno.EBADF:  # else another thread has closed it in this moment
                    raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def append(path: Path, event: schema.Event) -> None:
    """Add one event to a file that another process also writes to: a whole line in one write.
    Raises OSError, also if the file does not exist."""
    fd = open_inside(*paths.inside(path), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, encode(event))
    finally:
        os.close(fd)
