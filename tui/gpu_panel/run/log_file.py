"""The last lines of a log, however long it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpu_engine.common.clean import clean_bytes, clean_lines
from gpu_engine.common.files import open_inside, reason
from gpu_engine.events.paths import inside

MOST = 20_000
"""Lines that are kept. A pager shows the whole log."""
_BYTES = 8 << 20
"""Bytes that are read at once: those before the last so many are passed over."""
_LONGEST = 1 << 18
"""Bytes of a line that are shown, its last ones: those of a progress bar of hours matter."""
BAR = re.compile(r"(?:.*\d%\|.*\| \S+|(?:.*: )?\d\S*) \[\d+:\d\d[^\]]*\]")
"""A progress bar of tqdm's, with a total or without."""


class LogFile:
    """The last lines of a log that may grow, be emptied or be replaced while it is read. A log that
    grew too large is copied to NNNNN.log.1 and emptied: both are read as one. What was printed
    within the second before that is shown by the pager alone."""

    def __init__(self, title: str, path: Path | None = None, text: str = "") -> None:
        """`path`: its file; None: it is this text."""
        self.title, self.path, self.text = title, path, text.rstrip("\n")
        self.growing = ""
        """The last line, while it has no end yet."""
        self.trouble = ""
        """Why nothing is shown."""
        self.cut = False
        """Whether there are older lines than those that were returned."""
        self._identity: tuple[int, int] | None = None
        self._at, self._rest = 0, b""

    def read(self) -> list[str]:
        """The lines that have ended since the last call. Blocks."""
        if self.path is None:
            text, self.text = self.text, ""
            return clean_lines(text) if text else []
        new: list[bytes] = []
        first = self._identity is None
        self.trouble = "empty so far"
        for path in (self._older(), self.path) if first else (self.path,):
            try:
                new += self._read(path)
            except FileNotFoundError:
                self.trouble = "no output yet"
            except OSError as err:
                self.trouble = f"{path.name} can't be read: {reason(err)}"
        self.growing = clean_bytes(self._rest, None)
        self.cut = self.cut or len(new) > MOST
        return [part for line in new[-MOST:]
                for part in _apart(clean_bytes(line[-_LONGEST:], None))][-MOST:]

    def _older(self) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + ".1")

    def _read(self, path: Path) -> list[bytes]:
        with os.fdopen(open_inside(*inside(path)), "rb") as file:
            stat, ended = os.fstat(file.fileno()), list[bytes]()
            identity = stat.st_ino, stat.st_dev
            if identity != self._identity or stat.st_size < self._at:
                # It was emptied, or is another file: the line that grew gets no end any more.
                ended += [self._rest] if self._rest else []
                self._identity, self._at, self._rest = identity, 0, b""
            if stat.st_size - self._at > _BYTES:
                self._at, self._rest, self.cut = stat.st_size - _BYTES, b"", True
                file.seek(self._at)
                self._at += len(file.readline(_BYTES))  # the end of a line
            file.seek(self._at)
            data = file.read(_BYTES)
        self._at += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST:]
        return [*ended, *lines]

    def whole(self, shown: list[str]) -> Iterator[str]:
        """All of its lines with their ends, without what a terminal would obey; those that are
        `shown` where it has no file. Blocks."""
        if self.path is None:
            yield from (f"{line}\n" for line in shown)
            return
        for path in (self._older(), self.path):
            try:
                with os.fdopen(open_inside(*inside(path)), "rb") as file:
                    while raw := file.readline(_LONGEST):
                        yield clean_bytes(raw.removesuffix(b"\n"), None) + "\n"
            except OSError:
                continue


def _apart(line: str) -> list[str]:
    """A line, or what is printed behind a progress bar on a line of its own: the bar goes on at the
    beginning of its line, and leaves no end before it."""
    bar = BAR.match(line) if "[" in line else None
    behind = bar and line[bar.end():].strip()
    return [bar[0], behind] if bar and behind else [line]
