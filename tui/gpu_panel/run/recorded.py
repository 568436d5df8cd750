"""Everything that ranks record beside the loss, by name, in bounded memory.

Nobody may ever look at most of these curves, so they are kept coarser than the loss: adding a value
costs about a microsecond, and the band over all ranks is computed only when it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_engine.common.clean import clean
from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_panel.charts.series import Series

FINE, COARSE = 512, 128
"""Buckets of a curve: 20 KiB and 5 KiB."""
MANY, MOST = 1024, 8192
"""Curves beyond the first `MANY` are coarse; beyond `MOST`, none is kept. Together they take at
most 56 MiB."""
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


class Recorded:
    """The values of all ranks by their key."""

    def __init__(self) -> None:
        self.values: dict[str, RankValues] = {}
        self.left_out = 0
        """Values that were not kept, as there are too many names."""
        self._curves = 0
        self._stepped: dict[int, float] = {}
        """Rank → the time of its last step event, Unix seconds."""

    def begin(self, rank: int) -> None:
        """Note that a rank starts an attempt: it may go back to an earlier step."""
        self._stepped.pop(rank, None)
        for values in self.values.values():
            if rank in values.ranks:
                values.began.add(rank)

    def step(self, rank: int, event: schema.Step) -> None:
        """Take in what a step event carries beside losses."""
        if event.n == 0:  # only other optimizers have stepped
            return
        before, self._stepped[rank] = self._stepped.get(rank), event.t
        step = event.step
        if event.lr is not None:
            self._put(LR, rank, step, event.lr)
        if event.samples_per_s is not None:
            self._put(SAMPLES, rank, step, event.samples_per_s)
        if before is not None and event.t - before >= _LEAST_TIME:
            self._put(STEPS, rank, step, event.n / (event.t - before))
        if event.data_wait is not None:
            self._put(WAIT, rank, step, event.data_wait)
        if event.grad_norm is not None:
            self._put(NORM, rank, step, event.grad_norm)

    def named(self, kind: str, view: RankView, event: schema.Metric | schema.Eval) -> None:
        """Take in values with names: `kind` is LOGGED or EVALUATED. Values without a step belong
        to the last one that is known."""
        step = event.step if event.step is not None else view.at_step or view.step or 0
        for name, value in event.values.items():
            if value is not None:
                self._put(kind + name, view.rank, step, value)

    def _put(self, key: str, rank: int, step: int, value: float) -> None:
        values = self.values.get(key)
        series = values.ranks.get(rank) if values is not None else None
        if values is None or series is None:
            if self._curves >= MOST:
                self.left_out += 1
                return
            if values is None:
                values = self.values[key] = RankValues()
            self._curves += 1
            series = values.ranks[rank] = Series(FINE if self._curves <= MANY else COARSE)
            values.ranks = dict(sorted(values.ranks.items()))
        last = series.last
        if last is not None and (step < last or (step == last and rank in values.began)):
            series.cut(step)  # a value that is told again replaces the one of the earlier attempt
        if values.began:
            values.began.discard(rank)
        series.add(step, value)
        values.latest[rank] = value


def shown_name(key: str) -> str:
    """The name in a key, made harmless: "eval:loss" → "eval loss", "log:accuracy" → "accuracy"."""
    for begin, word in ((LOGGED, ""), (EVALUATED, "eval ")):
        if key.startswith(begin):
            return word + clean(key.removeprefix(begin), 60)
    return NAMES.get(key, clean(key, 60))


NAMES: Mapping[str, str] = {
    LR: "learning rate", SAMPLES: "samples per second", STEPS: "steps per second",
    WAIT: "data wait", NORM: "gradient norm"}
