"""Everything that ranks record beside the loss, by name, in bounded memory.

Nobody may ever look at most of these curves, so they are kept coarser than the loss, and the band
over all ranks is computed only when it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series, rising
from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView

FINE, COARSE = 512, 128
"""Buckets of a curve: 20 KiB and 5 KiB."""
MANY, MOST = 1024, 8192
"""Curves beyond `MANY` are coarse; beyond `MOST`, none is kept. In all at most 56 MiB."""
_LEAST_TIME = 0.05
"""Seconds between two step events of a rank, from which a rate can be told."""

LR, SAMPLES, STEPS, WAIT, NORM = "lr", "samples_per_s", "steps_per_s", "data_wait", "grad_norm"
"""Keys of what steps carry."""
LOGGED, EVALUATED = "log:", "eval:"
"""Begin the keys of values that the task or the script has named."""


@dataclass(slots=True)
class RankValues:
    """One kind of value: a curve over the steps and the latest value, for each rank."""

    ranks: dict[int, Series] = field(default_factory=dict)
    latest: dict[int, float] = field(default_factory=dict)
    began: set[int] = field(default_factory=set)
    """Ranks that have started an attempt and not had a value in it."""


_OF_STEPS = {LR: "lr", SAMPLES: "samples_per_s", WAIT: "data_wait", NORM: "grad_norm"}
"""Keys of what step events carry → their fields. `STEPS` follows from their times."""
_columns = attrgetter("step", "t", "n", *_OF_STEPS.values())


class Recorded:
    def __init__(self, most: int = MOST) -> None:
        """`most`: curves that are kept."""
        self.values: dict[str, RankValues] = {}
        self.left_out = 0
        """Values that were not kept, as there are too many names."""
        self._most, self._curves = most, 0
        self._unstepped: dict[int, int] = {}
        """Rank → how many values came of which no step is known."""
        self._stepped: dict[int, float] = {}
        """Rank → the time of its last step event, Unix seconds."""

    def begin(self, rank: int) -> None:
        self._stepped.pop(rank, None)
        for values in self.values.values():
            if rank in values.ranks:
                values.began.add(rank)

    def stepped(self, rank: int, told: Sequence[schema.Step]) -> None:
        steps, times, counts, *values = zip(*map(_columns, told), strict=True)
        before, self._stepped[rank] = self._stepped.get(rank), times[-1]
        rates = [n / (t - was) if was is not None and t - was >= _LEAST_TIME else None
                 for n, t, was in zip(counts, times, (before, *times), strict=False)]
        for key, column in zip((*_OF_STEPS, STEPS), (*values, rates), strict=True):
            at = steps
            if None in column:
                at = [x for x, value in zip(steps, column, strict=True) if value is not None]
            if at:
                self._put(key, rank, at, [value for value in column if value is not None])

    def named(self, view: RankView, event: schema.Metric | schema.Eval) -> int:
        """Take in values with names. Values without a step belong
        to the last one that is known; where there is none, each comes after the one before.
        Returns their step."""
        step = event.step if event.step is not None else view.at_step or view.step
        if not step and event.step is None:
            step = self._unstepped[view.rank] = self._unstepped.get(view.rank, -1) + 1
        kind = EVALUATED if isinstance(event, schema.Eval) else LOGGED
        for name, value in event.values.items():
            if value is not None:
                self._put(kind + name, view.rank, (step or 0,), (value,))
        return step or 0

    def _put(self, key: str, rank: int, steps: Sequence[int], found: Sequence[float]) -> None:
        series = self._series(key, rank)
        if series is None:
            self.left_out += len(found)
            return
        values = self.values[key]
        if rising(steps) and (series.last is None or steps[0] > series.last):
            series.add_rising(steps, found)
        else:
            for step, value in zip(steps, found, strict=True):
                last, begins = series.last, rank in values.began
                if last is not None and (step < last or (step == last and begins)):
                    series.cut(step)  # what is told again replaces what an earlier attempt told
                values.began.discard(rank)
                series.add(step, value)
        values.began.discard(rank)
        values.latest[rank] = found[-1]

    def _series(self, key: str, rank: int) -> Series | None:
        """The curve of a rank, which is made if it is missing; None if there are too many."""
        values = self.values.get(key)
        series = values.ranks.get(rank) if values is not None else None
        if series is None and self._curves < self._most:
            if values is None:
                values = self.values[key] = RankValues()
            self._curves += 1
            series = values.ranks[rank] = Series(FINE if self._curves <= MANY else COARSE)
            values.ranks = dict(sorted(values.ranks.items()))
        return series


def shown_name(key: str) -> str:
    """The name in a key, made harmless: "eval:loss" → "eval loss", "log:accuracy" → "accuracy"."""
    for begin, word in ((LOGGED, ""), (EVALUATED, "eval ")):
        if key.startswith(begin):
            return word + clean(key.removeprefix(begin), 60)
    return NAMES.get(key, clean(key, 60))


NAMES: Mapping[str, str] = {
    LR: "learning rate", SAMPLES: "samples per second", STEPS: "steps per second",
    WAIT: "data wait", NORM: "gradient norm"}
