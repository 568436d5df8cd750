"""How far the values of a run have gone, read from its events. What was read of a run that has
ended is kept in a file of the sweep, so that a large sweep is shown at once the next time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_engine.common import only_look, paths
from gpu_engine.common.files import read_json, write_json
from gpu_engine.events.decode import number
from gpu_engine.events.paths import events_path, ranks_with_files
from gpu_engine.events.reader import sample
from gpu_engine.events.writer import json_safe
from gpu_engine.runs.folder import Run, State
from gpu_engine.sweep.track import KINDS, Extent, Track

_PARTS, _PIECE, _END = 60, 1 << 14, 1 << 16
"""A rank's file that is larger than these pieces together, about a mebibyte, is read in parts."""
_MOST_RANKS = 16
_VERSION = 1

Stamp = list[list[int]]


@dataclass(frozen=True, slots=True)
class Figures:
    """How a run did. Nothing is known of a run that has recorded nothing."""

    steps: int | None = None
    values: dict[str, Extent] = field(default_factory=dict)
    """How far each value has gone, by its name."""
    exact: bool = True
    """False: only parts of the first rank's events were read, as there are so many."""


def of(run: Path) -> Figures:
    """The figures of the run in this folder."""
    ranks = ranks_with_files(run)[:_MOST_RANKS]
    exact = all(_size(events_path(run, rank)) <= _PARTS * _PIECE + _END for rank in ranks)
    track = Track()
    for rank in ranks if exact else ranks[:1]:
        for event in sample(events_path(run, rank), *KINDS, parts=_PARTS, piece=_PIECE, end=_END):
            track.fold(rank, event)
    return Figures(track.steps, track.extents(), exact)


class FiguresOf:
    """Reads the figures of one sweep's members, or of any runs, and remembers those of runs that
    have ended."""

    def __init__(self, sweep: str | None = None) -> None:
        self._sweep = sweep
        self._path = paths.home() / (f"sweeps/{sweep}.json" if sweep else "figures.json")
        data = read_json(self._path)
        known = data.get("runs") if isinstance(data, dict) and data.get("version") == _VERSION \
            else None
        self._known: dict[str, object] = known if isinstance(known, dict) else {}
        self._seen: dict[str, tuple[Stamp, Figures]] = {}
        """What was read since, of live runs too."""
        self._new = False

    def read(self, run: Run, state: State) -> Figures:
        """The figures of a member, in this state."""
        if state.state == "queued" and state.attempt == 1:
            return Figures()
        stamp = _stamp(run.path)
        seen, known = self._seen.get(run.id), self._known.get(run.id)
        if seen is not None and seen[0] == stamp:
            return seen[1]
        fits = isinstance(known, dict) and known.get("stamp") == stamp
        read = _from_dict(known) if fits else None
        if read is None:
            read = of(run.path)
            if not state.live:
                self._known[run.id] = {"stamp": stamp, **asdict(read)}
                self._new = True
        self._seen[run.id] = (stamp, read)
        return read

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
            write_json(self._path, json_safe({"version": _VERSION, "runs": self._known}))


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


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _from_dict(data: object) -> Figures | None:
    if not isinstance(data, dict):
        return None
    steps, values = data.get("steps"), data.get("values")
    if not isinstance(values, dict) or not (steps is None or type(steps) is int):
        return None
    extents = {str(name): Extent(*(number(one.get(k)) for k in ("least", "greatest", "last")))
               for name, one in values.items() if isinstance(one, dict)}
    return Figures(steps, extents, data.get("exact") is True)
