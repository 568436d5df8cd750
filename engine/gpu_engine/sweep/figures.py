"""How far the values of a run have gone, read from its events. What was read of a run that has
ended is kept in a file of the sweep, so that a large sweep is shown at once the next time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from gpu_engine.common import only_look, paths
from gpu_engine.common.files import read_json, size_of, write_json
from gpu_engine.events.paths import events_path, ranks_with_files
from gpu_engine.events.reader import sample
from gpu_engine.events.writer import json_safe
from gpu_engine.runs.folder import Run, State
from gpu_engine.sweep.track import KINDS, Extent, Track

_PARTS, _PIECE, _END = 60, 1 << 14, 1 << 16
"""A rank's file that is larger than these pieces together, about a mebibyte, is read in parts."""
_MOST_RANKS = 16

Stamp = list[list[int]]


@dataclass(frozen=True, slots=True)
class Figures:
    """How a run did. Nothing is known of a run that has recorded nothing."""

    steps: int | None = None
    values: dict[str, Extent] = field(default_factory=dict)
    """How far each value has gone, by its name."""
    samples_per_s: float | None = None
    """Examples a second of all ranks."""
    exact: bool = True
    """False: only parts of the first rank's events were read, as there are so many."""
    left_out: int = 0
    """How many names of values were left out, as there are so many."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was read of a run, and the stamp of its files then."""

    stamp: Stamp
    figures: Figures


@dataclass(frozen=True, slots=True)
class _File:
    runs: dict[str, _Kept]


def of(run: Path) -> Figures:
    """The figures of the run in this folder."""
    ranks = ranks_with_files(run)[:_MOST_RANKS]
    exact = all(size_of(events_path(run, rank)) <= _PARTS * _PIECE + _END for rank in ranks)
    track = Track()
    for rank in ranks if exact else ranks[:1]:
        for event in sample(events_path(run, rank), *KINDS, parts=_PARTS, piece=_PIECE, end=_END):
            track.fold(rank, event)
    return Figures(track.steps, track.extents(), track.samples_per_s if exact else None, exact,
                   track.left_out)


class FiguresOf:
    """Reads the figures of one sweep's members, or of any runs, and remembers those of runs that
    have ended."""

    def __init__(self, sweep: str | None = None) -> None:
        self._sweep = sweep
        self._path = paths.home() / (f"sweeps/{sweep}.json" if sweep else "figures.json")
        self._known: dict[str, _Kept] = {}
        """What the file has, of runs that have ended."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._known = msgspec.convert(read_json(self._path), _File, strict=False).runs
        self._seen: dict[str, _Kept] = {}
        """What was read since, of live runs too."""
        self._new = False

    def read(self, run: Run, state: State) -> Figures:
        """The figures of a member, in this state."""
        if state.state == "queued" and state.attempt == 1:
            return Figures()
        stamp = _stamp(run.path)
        for known in self._seen.get(run.id), self._known.get(run.id):
            if known is not None and known.stamp == stamp:
                return known.figures
        read = self._seen[run.id] = _Kept(stamp, of(run.path))
        if not state.live:
            self._known[run.id] = read
            self._new = True
        return read.figures

    def save(self) -> None:
        """Write what was read for the first time. Nothing depends on it."""
        if not self._new or only_look.on():
            return
        self._new = False
        if self._sweep is None:
            runs = paths.runs_folder()
            self._known = {name: one for name, one in self._known.items()
                           if (runs / name).exists()}
        with contextlib.suppress(OSError, ValueError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self._path, json_safe(asdict(_File(self._known))))


def forget(kept: set[str]) -> None:
    """Delete what is remembered of other sweeps than these, as their runs are gone."""
    if only_look.on():
        return
    with contextlib.suppress(OSError):
        for path in (paths.home() / "sweeps").glob("*.json"):
            if path.stem not in kept:
                path.unlink()


def _stamp(run: Path) -> Stamp:
    """Changes when a rank writes something."""
    out = []
    for rank in ranks_with_files(run):
        with contextlib.suppress(OSError):
            found = os.stat(events_path(run, rank))  # noqa: PTH116  of a thousand runs
            out.append([rank, found.st_size, found.st_mtime_ns])
    return out
