"""Room on disk: what a run needs to begin, what there is, and how a run that died for want of it
is told. Standard library only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.errors import Problem, UserError

LEAST = 64 << 20
"""Bytes below which a run is not begun: its events and logs would soon be cut, and no checkpoint
of more than a toy fits."""
SCARCE = 2 << 30
"""Bytes below which what is free is shown as something to look at."""

_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]",
                   re.IGNORECASE)
_PATH = re.compile(r"(?:No space left on device|Disk quota exceeded): '([^']+)'", re.IGNORECASE)
_UNWRITTEN = re.compile(r"PytorchStreamWriter failed writing|file write failed|iostream error"
                        r"|unexpected pos \d+", re.IGNORECASE)
"""What torch's own writers say, which ask the system for no reason."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a folder's disk has free."""

    folder: str
    free: int | None
    """Bytes for this user; None: can't be told."""

    @property
    def enough(self) -> bool:
        """Whether a run can begin; where nothing is known, it may try."""
        return self.free is None or self.free >= LEAST


def of(folder: Path) -> Room:
    """The room where `folder` is, or will be. A disk without free inodes has none."""
    at = folder.absolute()
    while True:
        try:
            info = os.statvfs(at)
        except FileNotFoundError:
            if at.parent == at:
                return Room(str(folder), None)
            at = at.parent
            continue
        except OSError:
            return Room(str(folder), None)
        free = info.f_bavail * info.f_frsize
        # Some file systems have no fixed number of inodes, and say 0 of 0.
        return Room(str(folder), 0 if info.f_files and not info.f_favail else free)


def problem(folder: Path) -> Problem | None:
    """What keeps a run from beginning in `folder`; None: nothing does."""
    room = of(folder)
    if room.enough:
        return None
    return Problem("", None, f"no space left in {folder}: {units.size(room.free)} free, and a run "
                             f"needs {units.size(LEAST)} for its logs and checkpoints at the very "
                             "least. Remove runs that are over (gpu-engine runs prune; X in the "
                             "panel), or set GPU_PANEL_HOME to a folder on another disk")


def require(folder: Path) -> None:
    """Raises UserError where a run can't begin in `folder`."""
    found = problem(folder)
    if found is not None:
        raise UserError(found.message)


def blame(text: str, room: Room | None = None, *, silent: bool = False) -> str:
    """"no space left …" where `text`, what a rank said last, or the run's own disk (`room`) tells
    that a write failed for it; else "". `silent`: the rank died and could not say why."""
    here = ""
    if room is not None and room.free is not None and not room.enough:
        here = f"no space left in {room.folder} ({units.size(room.free)} free)"
    if _FULL.search(text):
        named = _PATH.search(text)
        if named:
            return f"no space left on the disk of {named[1]}"
        return here or "no space left on a disk that it wrote to"
    return here if silent or _UNWRITTEN.search(text) else ""
