"""Removed runs: kept for a week, so that they can be brought back.

A run folder is renamed into `removed/` of the home, to its id and the time, "3f2a.1790000000". Its
place on the list of runs that were started here stays: a run that is brought back is resumed, and
its hosts are asked, as before.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import reason
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run, private_folder

KEPT = 7 * 24 * 3600
"""Seconds for which a removed run can be brought back."""
_FOR_GOOD = "gpu-engine runs rm --for-good"
_NAME = re.compile(r"([^./][^/]*)\.([0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class Removed:
    """A run in the bin."""

    id: str
    """As it was called, and will be."""
    removed: float
    """When, Unix seconds."""
    run: Run
    """Its folder in the bin."""


def folder() -> Path:
    """The folder of removed runs."""
    return paths.home() / "removed"


def listed() -> list[Removed]:
    """The runs in the bin, the last removed first."""
    try:
        entries = [entry for entry in os.scandir(folder()) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    found = [(match, Path(entry.path)) for entry in entries
             if (match := _NAME.fullmatch(entry.name)) is not None]
    return sorted((Removed(match[1], float(match[2]), Run(path)) for match, path in found),
                  key=lambda one: one.removed, reverse=True)


def old(now: float) -> Iterator[Removed]:
    """Those that have been there long enough. `now`: Unix seconds."""
    return (one for one in listed() if one.removed < now - KEPT)


def put(run: Run) -> None:
    """Move an ended run into the bin. Raises UserError where it may not be removed, or can't be
    moved."""
    run.require_over()
    if run.path.parent != paths.runs_folder():
        raise UserError(f"{run.path} is not among the runs of this home, whose bin it would go to; "
                        f"{_FOR_GOOD} deletes it")
    try:
        os.rename(run.path, private_folder(folder()) / f"{run.id}.{int(time.time())}")  # noqa: PTH104
    except OSError as err:
        why = "it is on another disk" if err.errno == errno.EXDEV else reason(err)
        raise UserError(f"run {run.id} can't be moved into the bin, {folder()}: {why}; "
                        f"{_FOR_GOOD} deletes it") from None


def find(name: str) -> Removed:
    """The run in the bin with this id, or an unambiguous beginning of it; of several with one id
    the last removed. Raises UserError."""
    found = [one for one in listed() if one.id.startswith(name)]
    whole = [one for one in found if one.id == name]
    if not found:
        raise UserError(f"no removed run {name}; gpu-engine runs --removed lists them")
    if not whole and len({one.id for one in found}) > 1:
        raise UserError(f"{name} may be " + ", ".join(sorted({one.id for one in found})))
    return (whole or found)[0]


def restore(one: Removed) -> Run:
    """Bring a run back. Raises UserError, also where another run has its id now."""
    there = paths.runs_folder() / one.id
    if os.path.lexists(there):
        raise UserError(f"there is another run {one.id} now, in {there}; this one stays in "
                        f"{one.run.path}")
    with telling(f"run {one.id} can't be brought back"):
        os.rename(one.run.path, there)  # noqa: PTH104
    return Run(there)


def delete(one: Removed) -> None:
    """Delete what is here of it. Raises UserError."""
    with telling(f"{one.run.path} can't be deleted"):
        shutil.rmtree(one.run.path)
    if not os.path.lexists(paths.runs_folder() / one.id):
        trust.forget_started(paths.runs_folder() / one.id)
