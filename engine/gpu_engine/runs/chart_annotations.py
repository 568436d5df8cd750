"""A person's notes at moments of a run, which charts show as marks. They are in `marks.jsonl` in
the run folder, a line each, which only the person's own commands and panel append to.

A later line for the same moment replaces the earlier one; an empty text removes it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside, open_inside, reason
from gpu_engine.common.records import UnixTime, Whole, read_record
from gpu_engine.runs import trust
from gpu_engine.runs.folder_problems import whose

FILE = "marks.jsonl"
LONGEST = 200
"""Characters of a text."""
_MOST = 1 << 20
"""Bytes of the file that are read, from its end."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One note. At least one of `step` and `t` is known."""

    text: str
    step: Whole | None = None
    t: UnixTime | None = None
    """Unix seconds."""


def read(run: Path) -> list[Mark]:
    """The notes of the run in this folder, in the order in which they were first made. Lines that
    are no notes are left out; so are all if the file can't be read."""
    try:
        with file_inside(run, FILE) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _MOST, 0))
            lines = file.read(_MOST).split(b"\n")
    except OSError:
        return []
    found: dict[tuple[int | None, float | None], Mark] = {}
    for line in lines:
        try:
            mark = read_record(Mark, json.loads(line), strict=True)
        except (ValueError, RecursionError):
            continue
        if mark.step is None and mark.t is None:
            continue
        found[mark.step, mark.t] = mark
    return [m for m in found.values() if m.text]


def write(run: Path, mark: Mark) -> None:
    """Add a note to the run in this folder, or replace the one at that moment. Raises UserError if
    it is no text for a note, can't be written, or the folder is not this user's alone."""
    trust.require_ours(run)
    if len(mark.text) > LONGEST or not mark.text.isprintable():
        raise UserError(f"a note on a curve is one line of at most {LONGEST} printable characters;"
                        f" this has {len(mark.text)}")
    line = json.dumps(asdict(mark), allow_nan=False).encode() + b"\n"
    try:
        fd = open_inside(run, FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # a line without its end is not to spoil this one
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError as err:
        raise UserError(f"run {run.name}: the note can't be kept: {reason(err)}{whose(run)}"
                        ) from None
