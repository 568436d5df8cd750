"""Writing events: as the JSON objects in the lines of a rank's file, which `reader` reads; one
writer per file, and only whole lines, in one `write` per call.

Standard library only, like `schema`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

# Relative: in an observed script the package has another name.
from ..common.kept_file import KeptFile
from . import paths
from .schema import Event, rename_reserved

_encoded = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def to_dict(event: Event) -> dict[str, object]:
    """The JSON object of an event. Numbers that are not finite are still floats in it."""
    return {"t": round(event.t, 3), "kind": event.kind, **_fields(event)}


def _fields(record: Any) -> dict[str, object]:
    out: dict[str, object] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if one.type == "Named":
            out.update(rename_reserved(value))
        elif isinstance(value, dict):
            out[one.name] = {str(key): _fields(other) for key, other in value.items()}
        elif one.name != "t" and (value not in (None, ()) or one.default not in (None, ())):
            out[one.name] = value
    return out


def json_safe(value: object) -> object:
    """`value` with every float that is not finite replaced by a string, as strict JSON needs it,
    and every record by a dict."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    return value


def encode(event: Event) -> bytes:
    """An event as a line, newline included. Numbers that are not finite become strings."""
    told = to_dict(event)
    try:
        text = _encoded(told)
    except ValueError:
        text = _encoded(json_safe(told))
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
        self._file.close()


def append(path: Path, event: Event) -> None:
    """Add one event to a file that another process may also write to. Raises OSError."""
    with contextlib.closing(EventWriter(path)) as writer:
        writer.write(encode(event))
