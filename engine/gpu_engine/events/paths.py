"""Where in a run folder the files of a rank are.

Standard library only, and no newer than Python 3.9, as `schema`.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "ranks"


def events_path(run: Path, rank: int) -> Path:
    """The events file of `rank` in the run folder `run`."""
    return run / FOLDER / f"{rank:05d}.jsonl"


def log_path(run: Path, rank: int) -> Path:
    """Where `rank` prints, unless it shares the log of what started it."""
    return run / FOLDER / f"{rank:05d}.log"


def ranks_with_files(run: Path) -> list[int]:
    """The ranks that have an events file or a log, in order; none where the folder can't be
    listed."""
    try:
        names = [Path(name) for name in os.listdir(run / FOLDER)]  # noqa: PTH208
    except OSError:
        return []
    return sorted({int(p.stem) for p in names
                   if p.suffix in (".jsonl", ".log") and p.stem.isdecimal()})
