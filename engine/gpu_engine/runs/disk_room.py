"""Disk space: what a run needs to start, what is free, and whether a run died because the disk was
full. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.common.errors import Problem, UserError

LEAST = 64 << 20
"""Free bytes that a run needs to start. With less its logs would soon be cut, and only a toy
model's checkpoint would fit."""
FULL = 1 << 20
"""Bytes below which events and logs of a live run may be cut."""
SCARCE = 2 << 30
"""Free bytes below which the panel shows a warning."""

_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]",
                   re.IGNORECASE)
_PATH = re.compile(r"(?:No space left on device|Disk quota exceeded): '([^']+)'", re.IGNORECASE)
_SHARED = re.compile(r"</torch_\d|/dev/shm|shared memory", re.IGNORECASE)
"""What passes data between processes: a loader's workers, NCCL."""
_BUS = re.compile(r"killed by signal: Bus error")
_UNWRITTEN = re.compile(r"PytorchStreamWriter failed writing|file write failed|iostream error"
                        r"|unexpected pos \d+", re.IGNORECASE)
"""Errors of torch's own writers, which do not say why a write failed."""


@dataclass(frozen=True, slots=True)
class Room:
    """The free space on a folder's disk."""

    folder: str
    free: int | None
    """Bytes that this user can still write; None: not known."""
    total: int | None = None
    """Bytes of the whole disk."""

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {units.size(self.total)}"
        return f"{self.folder} ({units.size(self.free)} free{of})"

    @property
    def enough(self) -> bool:
        """Whether a run can start; True if the free space is not known."""
        return self.free is None or self.free >= LEAST


def of(folder: Path) -> Room:
    """The free space on the disk on which `folder` is, or will be. Without free inodes it is 0."""
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
        return Room(str(folder), 0 if info.f_files and not info.f_favail else free,
                    info.f_blocks * info.f_frsize)


def problem(folder: Path) -> Problem | None:
    """The problem if too little space is free for a run in `folder`; None if there is enough."""
    room = of(folder)
    if room.enough:
        return None
    return Problem("", None, f"no space left in {folder}: {units.size(room.free)} free, and a run "
                             f"needs at least {units.size(LEAST)} for its logs and checkpoints. "
                             "Remove old runs (gpu-engine runs prune --keep 20), or set "
                             "GPU_PANEL_HOME to a folder on another disk")


def require(folder: Path) -> None:
    """Raises UserError if too little space is free for a run in `folder`."""
    found = problem(folder)
    if found is not None:
        raise UserError(found.message)


def silence(folder: Path) -> str | None:
    """Why nothing may be heard of ranks that write into `folder` though they go on: its disk is
    full. None where it is not, or that can't be told."""
    room = of(folder)
    if room.free is None or room.free >= FULL:
        return None
    return ("no space left, so nothing is recorded of the ranks, which may go on all the same; "
            f"make room in {folder}")


def shared_memory() -> str:
    """/dev/shm with its size, and what helps where that is too small."""
    total = of(Path("/dev/shm")).total
    return (f"/dev/shm (shared memory{'' if total is None else f', {units.size(total)} in all'}): "
            "give it more (docker run --shm-size=16g), or the loaders fewer workers")


def blame(text: str, rooms: Sequence[Room] = (), *, silent: bool = False) -> str:
    """"no space left …" if a rank failed because a disk was full, else "".

    `text` is the last output of the rank; `rooms` the free space on the run's own disk, and where
    else it may have written. `silent`: the rank died without saying why, so a full disk of the run
    is enough evidence.
    """
    full = [room for room in rooms if not room.enough]
    if _SHARED.search(text) and (_FULL.search(text) or _BUS.search(text)):
        return f"no space left in {shared_memory()}"
    if _FULL.search(text) and (named := _PATH.search(text)):
        folder = Path(named[1]).parent
        room = of(folder) if folder.is_dir() else Room(named[1], None)
        where = "" if room.total is None else str(room)[len(room.folder):]
        return f"no space left on the disk of {named[1]}{where}: make room there"
    if full and (_FULL.search(text) or _UNWRITTEN.search(text) or (silent and full[0] is rooms[0])):
        return f"no space left in {full[0]}: make room there"
    return "no space left on a disk that it wrote to" if _FULL.search(text) else ""
