"""Whether one run's steps take longer than another's: a gate for somebody's own tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import steps
from gpu_engine.events.paths import events_path, ranks_with_files

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run

FIRST = 10
"""Steps of an attempt that are left out, with what was told together with them: they compile, fill
caches and choose kernels."""
ENOUGH = 50
"""Steady steps that a median needs."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The steps of a run's last attempt after its first ones."""

    run: str
    steps: int
    """Of the rank with the fewest."""
    median: float
    """Seconds, of the slowest rank, without saving and evaluation."""


@dataclass(frozen=True, slots=True)
class Regression:
    """How the steps of a second run compare with those of a first."""

    before: Steady
    after: Steady

    @property
    def change(self) -> float:
        """0.05: the second's take 5 % longer."""
        return self.after.median / self.before.median - 1

    def text(self, limit: float) -> str:
        """The figures in a line. `limit`: the largest change that passes, 0.05 for 5 %."""
        each = [f"{one.run} {units.brief(one.median)} ({one.steps} steps)"
                for one in (self.before, self.after)]
        verdict = "more than" if self.change > limit else "within"
        return f"median step time: {each[0]}, {each[1]}: {self.change:+.1%}, {verdict} {limit:.1%}"


def compare(before: Run, after: Run) -> Regression:
    """Compare two runs. Raises UserError if one has too few steps to tell."""
    return Regression(steady(before), steady(after))


def steady(run: Run) -> Steady:
    """The steady steps of a run. Raises UserError if these are too few."""
    ranks = [_of_file(events_path(run.path, rank)) for rank in ranks_with_files(run.path)]
    found = [one for one in ranks if one is not None]
    fewest = min((n for n, _ in found), default=0)
    if fewest < ENOUGH:
        raise UserError(f"run {run.id} has {fewest} timed steps after its first {FIRST}: a median "
                        f"that can be compared needs {ENOUGH}; train for more steps")
    return Steady(run.id, fewest, max(median for _, median in found))


def _of_file(path: Path) -> tuple[int, float] | None:
    """(steady steps, their median) of a rank's last attempt; None if it tells of no step."""
    spans = list(steps.newest(path))
    if not spans:
        return None
    begin = spans[-1].step - spans[-1].n + FIRST
    kept = [s for s in spans if s.step - s.n >= begin]
    return sum(s.n for s in kept), steps.median_of(kept) or 0.0
