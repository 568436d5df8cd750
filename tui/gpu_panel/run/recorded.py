"""Everything that ranks record beside the loss, by name, in bounded memory.

Nobody may ever look at most of these curves, so they are kept coarser than the loss, the band over
all ranks is computed only when it is drawn, and what steps carry is folded many at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from gpu_engine.common.clean import clean
from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_panel.charts.series import Series

FINE, COARSE = 512, 128
"""Buckets of a curve: 20 KiB and 5 KiB."""
MANY, MOST = 1024, 8192
"""Curves beyond the first `MANY` are coarse; beyond `MOST`, none is kept. Together they take at
most 56 MiB."""
TOGETHER = 256
"""Step events of a rank that are folded at once, unless somebody looks before."""
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


_Told = tuple[int, float, float | None, float | None, float | None, float | None, float | None]
"""What a step event carries: step, time, and LR, SAMPLES, STEPS, WAIT, NORM. None: not known."""


class Recorded:
    """The values of all ranks by their key."""

    def __init__(self) -> None:
        self._values: dict[str, RankValues] = {}
        self._told: dict[int, list[_Told]] = {}
        """Rank → what its last step events carried and was not folded yet."""
        self.left_out = 0
        """Values that were not kept, as there are too many names."""
        self._curves = 0
        self._stepped: dict[int, float] = {}
        """Rank → the time of its last step event, Unix seconds."""

    @property
    def values(self) -> dict[str, RankValues]:
        """Everything by its key, folded up to now."""
        for rank in [r for r, told in self._told.items() if told]:
            self._fold(rank)
        return self._values

    def begin(self, rank: int) -> None:
        """Note that a rank starts an attempt: it may go back to an earlier step."""
        self._fold(rank)
        self._stepped.pop(rank, None)
        for values in self._values.values():
            if rank in values.ranks:
                values.began.add(rank)

    def step(self, rank: int, event: schema.Step) -> None:
        """Take in what a step event carries beside losses."""
        if event.n == 0:  # only other optimizers have stepped
            return
        before, self._stepped[rank] = self._stepped.get(rank), event.t
        rate = event.n / (event.t - before) \
            if before is not None and event.t - before >= _LEAST_TIME else None
        told = self._told.setdefault(rank, [])
        told.append((event.step, event.t, event.lr, event.samples_per_s, rate, event.data_wait,
                     event.grad_norm))
        if len(told) >= TOGETHER:
            self._fold(rank)

    def _fold(self, rank: int) -> None:
        told = self._told.pop(rank, [])
        if not told:
            return
        steps, _, *columns = zip(*told, strict=True)
        rises = all(a < b for a, b in pairwise(steps))
        for key, column in zip((LR, SAMPLES, STEPS, WAIT, NORM), columns, strict=True):
            known = None not in column and all(map(isfinite, column))
            series = self._series(key, rank) if known else None
            if series is not None and rises and (series.last is None or steps[0] > series.last):
                _put_all(series, steps, column)
                values = self._values[key]
                values.latest[rank] = column[-1]
                values.began.discard(rank)
                continue
            for step, value in zip(steps, column, strict=True):
                if value is not None:
                    self._put(key, rank, step, value)

    def named(self, kind: str, view: RankView, event: schema.Metric | schema.Eval) -> None:
        """Take in values with names: `kind` is LOGGED or EVALUATED. Values without a step belong
        to the last one that is known."""
        step = event.step if event.step is not None else view.at_step or view.step or 0
        for name, value in event.values.items():
            if value is not None:
                self._put(kind + name, view.rank, step, value)

    def _put(self, key: str, rank: int, step: int, value: float) -> None:
        series = self._series(key, rank)
        if series is None:
            self.left_out += 1
            return
        values, last = self._values[key], series.last
        if last is not None and (step < last or (step == last and rank in values.began)):
            series.cut(step)  # a value that is told again replaces the one of the earlier attempt
        values.began.discard(rank)
        series.add(step, value)
        values.latest[rank] = value

    def _series(self, key: str, rank: int) -> Series | None:
        """The curve of a rank, which is made if it is missing; None if there are too many."""
        values = self._values.get(key)
        series = values.ranks.get(rank) if values is not None else None
        if series is None and self._curves < MOST:
            if values is None:
                values = self._values[key] = RankValues()
            self._curves += 1
            series = values.ranks[rank] = Series(FINE if self._curves <= MANY else COARSE)
            values.ranks = dict(sorted(values.ranks.items()))
        return series


def _put_all(series: Series, steps: Sequence[int], values: Sequence[float]) -> None:
    """Add finite values at rising steps beyond the last of the series, a bucket at a time."""
    begin = 0
    while begin < len(steps):
        # A new bucket may make all of them wider.
        series.add_several(steps[begin], values[begin:begin + 1])
        begin += 1
        end = bisect_left(steps, (steps[begin - 1] // series.stride + 1) * series.stride, begin)
        if end > begin:
            series.add_several(steps[end - 1], values[begin:end])
            begin = end


def shown_name(key: str) -> str:
    """The name in a key, made harmless: "eval:loss" → "eval loss", "log:accuracy" → "accuracy"."""
    for begin, word in ((LOGGED, ""), (EVALUATED, "eval ")):
        if key.startswith(begin):
            return word + clean(key.removeprefix(begin), 60)
    return NAMES.get(key, clean(key, 60))


NAMES: Mapping[str, str] = {
    LR: "learning rate", SAMPLES: "samples per second", STEPS: "steps per second",
    WAIT: "data wait", NORM: "gradient norm"}
