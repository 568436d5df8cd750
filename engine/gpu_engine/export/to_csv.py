"""A run as CSV: a line for each row, a column for each name."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from gpu_engine.export.atomic_output import Aside
from gpu_engine.export.row import About, Anew, Names, Row

FIRST = ("step", "time", "attempt")
"""The columns that every row has. Time is in Unix seconds."""


class Csv:
    """Writes the file `path`. Which columns there are is known when all rows are. So rows go to a
    file without a name at first, and behind the head into the final one when they are published."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = Names()
        self._at: dict[str, int] = {}
        self._grown: dict[int, int] = {}
        """Line of the body from which on there are so many columns → columns."""
        self._lines = 0
        self._aside: Aside | None = None
        self._body: BinaryIO | None = None
        """None once the head is written."""

    def begin(self, about: About) -> None:
        """Open both files. Columns of an earlier beginning stay. Raises UserError."""
        self._lines, self._grown = 0, {0: len(self._at)}
        self._aside = Aside(self._path, about.id)
        self._body = os.fdopen(tempfile_in(self._path.parent), "w+b", buffering=1 << 16)

    def write(self, row: Row) -> None:
        """Add a line. Raises Anew if it has a new column and the head is written."""
        assert self._aside is not None
        new = [n for n in row.values if n not in self._at and self._names(n) is not None]
        for name in new:
            self._at[name] = len(self._at)
        if new:
            if self._body is None:
                raise Anew  # with these columns from the beginning
            self._grown[self._lines] = len(self._at)
        cells = [""] * len(self._at)
        for name, value in row.values.items():
            if (at := self._at.get(name)) is not None:
                cells[at] = cell(value)
        line = f"{row.step},{row.t:.3f},{row.attempt},{','.join(cells)}\n"
        (self._body or self._aside.file).write(line.encode())
        self._lines += 1

    def rewind(self, step: int) -> None:
        raise Anew

    def publish(self) -> None:
        assert self._aside is not None
        if self._body is not None:
            self._behind_head(self._body, self._aside.file)
            self._body.close()
            self._body = None
        self._aside.publish()

    def close(self) -> str:
        self.publish()
        assert self._aside is not None
        self._aside.close()
        return str(self._path)

    def abandon(self) -> None:
        if self._body is not None:
            with contextlib.suppress(OSError):
                self._body.close()
        if self._aside is not None:
            self._aside.abandon()

    def _behind_head(self, body: BinaryIO, file: BinaryIO) -> None:
        """Write the head and all lines, each with all columns."""
        names = [quoted(self._names(name) or "") for name in self._at]
        file.write((",".join([*FIRST, *names]) + "\n").encode())
        body.seek(0)
        lack = b"\n"
        for number, line in enumerate(body):
            if number in self._grown:
                lack = b"," * (len(self._at) - self._grown[number]) + b"\n"
            file.write(line if lack == b"\n" else line[:-1] + lack)


def tempfile_in(folder: Path) -> int:
    """The descriptor of a new file in `folder` that has no name. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=folder, prefix=".exporting-")
    Path(name).unlink()
    return fd


def cell(value: float) -> str:
    """A value as Python, pandas and spreadsheets read it back exactly: "0.25", "1240", "nan",
    "-inf"."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value))


_WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The same four characters as wide as a Chinese one: some spreadsheets take them for the narrow."""


def defused(text: str) -> str:
    """A text that no spreadsheet takes for a formula: an apostrophe stands before its first
    character if that would begin one, as OWASP's "CSV Injection" advises. Only for texts: -1 is a
    number."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r", *_WIDE)) else text


def quoted(name: str) -> str:
    """A name as a cell."""
    name = defused(name)
    if any(c in name for c in ',"\n\r'):
        return '"' + name.replace('"', '""') + '"'
    return name
