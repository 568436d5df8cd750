"""A series for each rank and one over all of them, in which steps that an attempt has done again
replace the earlier ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_engine.common.series import Series, parts, rising


@dataclass(slots=True)
class _Position:
    """Where one rank is: its attempt, how often it went back to an earlier step within that
    attempt, and its last step."""

    attempt: int = 1
    rewinds: int = 0
    last: int = -1

    @property
    def generation(self) -> tuple[int, int]:
        """Orders the values of one step: those of a later generation replace earlier ones."""
        return self.attempt, self.rewinds


@dataclass(slots=True)
class RankSeries:
    """A series for each rank, and `all`, a series over all ranks with their least, greatest and
    mean value.

    When a rank goes back to an earlier step, the new values replace the old ones from there on. In
    `all`, the first rank that goes back cuts the series; older values of other ranks beyond that
    step are then left out, in whatever order the ranks' files are read.
    """

    ranks: dict[int, Series] = field(default_factory=dict)
    all: Series = field(default_factory=Series)
    _positions: dict[int, _Position] = field(default_factory=dict)
    _generation: tuple[int, int] = (0, 0)
    _cuts: list[tuple[tuple[int, int], int]] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.all.version

    def begin(self, rank: int, attempt: int) -> None:
        position = self._positions.setdefault(rank, _Position())
        position.attempt, position.rewinds, position.last = max(attempt, 1), 0, -1

    def extend(self, rank: int, steps: Sequence[int], values: Sequence[float],
               los: Sequence[float] | None = None, his: Sequence[float] | None = None) -> None:
        """Add values in the order of the rank's file: the same as `put` of each, but much faster
        where the steps rise. `los` and `his`, both or neither: as in `Series.add_rising`."""
        columns = values, *((los, his) if los is not None and his is not None else ())
        if not rising(steps):
            for step, *of_step in zip(steps, *columns, strict=True):
                self.put(rank, step, *of_step)
            return
        self.put(rank, steps[0], *(column[0] for column in columns))
        # What comes after the first goes on from there, so it changes neither generation nor cuts.
        position = self._positions[rank]
        cut = min((at for new, at in self._cuts if position.generation < new), default=None)
        position.last = steps[-1]
        shared = len(steps) if cut is None else max(bisect_left(steps, cut), 1)
        for begin, end, each in ((1, shared, (self.ranks[rank], self.all)),
                                 (shared, len(steps), (self.ranks[rank],))):
            if begin < end:
                # Gathered once for all of them, in buckets as narrow as the narrowest.
                stride = min(series.fit(steps[begin], steps[end - 1]) for series in each)
                gathered = parts(steps[begin:end], values[begin:end], stride,
                                 *(column[begin:end] for column in columns[1:]))
                for series in each:
                    series.add_parts(gathered)

    def put(self, rank: int, step: int, value: float, lo: float | None = None,
            hi: float | None = None) -> None:
        """Add one value, or the mean of several with their least and greatest value."""
        position = self._positions.get(rank)
        if position is None:
            position = self._positions[rank] = _Position()
        series = self.ranks.get(rank)
        if series is None:
            series = self.ranks[rank] = Series()
            self.ranks = dict(sorted(self.ranks.items()))
        if series.last is not None and step <= series.last:
            series.cut(step)
        if step <= position.last:
            position.rewinds += 1
        position.last = step
        series.add(step, value, lo, hi)
        generation = position.generation
        if generation > self._generation:
            self._generation = generation
            self._cuts = [c for c in self._cuts if c[1] < step] + [(generation, step)]
            self.all.cut(step)
        elif generation < self._generation \
                and any(generation < new and step >= cut for new, cut in self._cuts):
            return
        self.all.add(step, value, lo, hi)
