"""A list of the files of some code: their paths, modes and contents, and the name that follows from
them. Pure.

The list is bytes, because a path need not be text. Who gets one from elsewhere has it checked here:
no path leaves the folder, and none goes through a link.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

LARGEST = 100 << 20
"""Bytes of all files together, at most: code is not larger, data is."""
MOST_FILES = 50_000
LONGEST_LIST = 16 << 20
"""Bytes of a list of files, at most."""
SHORT = 12
"""Characters of the name that stand in a folder's name and on the screen."""

Kind = Literal["file", "program", "link"]
_KINDS: tuple[Kind, ...] = ("file", "program", "link")
_LINE = re.compile(rb"(file|program|link) ([0-9a-f]{64}) ([0-9]{1,12}) ([^\0]+)", re.DOTALL)


class BadList(ValueError):
    """The list is none, or one of its paths is not to be followed; says which."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One file. The content of a link is where it points to."""

    path: bytes
    """Relative, its parts divided by /."""
    kind: Kind
    sha256: str
    size: int


def packed(entries: Iterable[Entry]) -> bytes:
    """The list, in the order of the paths: the same files give the same bytes."""
    return b"".join(b"%s %s %d %s\0" % (e.kind.encode(), e.sha256.encode(), e.size, e.path)
                    for e in sorted(entries))


def name_of(listed: bytes) -> str:
    """The name of exactly these files: 64 hexadecimal characters."""
    return hashlib.sha256(listed).hexdigest()


def unpacked(listed: bytes) -> tuple[Entry, ...]:
    """The inverse of `packed`. Raises BadList."""
    if listed and not listed.endswith(b"\0"):
        raise BadList("it is cut")
    out = []
    for line in listed.split(b"\0")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadList(f"not a line of it: {line[:80]!r}")
        kind: Kind = next(k for k in _KINDS if k.encode() == match[1])
        out.append(Entry(match[4], kind, match[2].decode(), int(match[3])))
    if len(out) > MOST_FILES or sum(e.size for e in out) > LARGEST:
        raise BadList("it is longer, or its files are larger, than code may be")
    paths = {e.path for e in out}
    if len(paths) != len(out):
        raise BadList("a path stands in it twice")
    for path in paths:
        parts = path.split(b"/")
        if any(part in (b"", b".", b"..") for part in parts):
            raise BadList(f"{path!r} is not a path below a folder")
        if any(b"/".join(parts[:n]) in paths for n in range(1, len(parts))):
            raise BadList(f"{path!r} goes through something that is no folder")
    return tuple(out)
