"""How far the values of a run have gone, read from its events: some 50 ms for a mebibyte."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common.files import size_of
from gpu_engine.events.paths import events_path, ranks_with_files
from gpu_engine.events.reader import sample
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


def of(run: Path) -> Figures:
    """The figures of the run in this folder."""
    ranks = ranks_with_files(run)[:_MOST_RANKS]
    exact = all(size_of(events_path(run, rank)) <= _PARTS * _PIECE + _END for rank in ranks)
    track = Track()
    for rank in ranks if exact else ranks[:1]:
        for event in sample(events_path(run, rank), *KINDS, parts=_PARTS, piece=_PIECE, end=_END):
            track.fold(rank, event)
    return Figures(track.steps, track.extents(), track.samples_per_s if exact else None, exact)


class FiguresOf:
    """Reads the figures of runs, and remembers what it has read."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Stamp, Figures]] = {}

    def read(self, run: Run, state: State) -> Figures:
        """The figures of a run, in this state."""
        if state.state == "queued" and state.attempt == 1:
            return Figures()
        stamp = _stamp(run.path)
        known = self._seen.get(run.id)
        if known is None or known[0] != stamp:
            known = self._seen[run.id] = stamp, of(run.path)
        return known[1]


def _stamp(run: Path) -> Stamp:
    """Changes when a rank writes something."""
    out = []
    for rank in ranks_with_files(run):
        with contextlib.suppress(OSError):
            found = os.stat(events_path(run, rank))  # noqa: PTH116  of a thousand runs
            out.append([rank, found.st_size, found.st_mtime_ns])
    return out
