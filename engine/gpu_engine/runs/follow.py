"""Following a run: reading its state and its ranks' new events into one view."""

from __future__ import annotations

import time

from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import RunReader
from gpu_engine.events.schema import Event
from gpu_engine.events.view import Progress, RunView
from gpu_engine.runs import job
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State

_MOMENT = 0.03
"""Seconds between two checks whether the state was written: one `stat` each."""


class Follower:
    """Reads a run's state and new events, a bounded amount at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._seen = self._stamp()
        """The state's, when it was waited for last."""
        self.view = RunView()
        self.state: State = run.state()
        self._reader = RunReader(run.path)
        self._looked = 0.0

    @property
    def ranks(self) -> dict[int, RankView]:
        return self.view.ranks

    @property
    def skipped(self) -> int:
        """How many lines did not parse so far."""
        return self._reader.skipped

    @property
    def behind(self) -> bool:
        """Whether much of what the ranks have recorded has not been read yet. Then nothing can be
        said about now, such as whether a rank stands still."""
        return self._reader.behind()

    def poll(self, *, budget: float = 0.05) -> list[tuple[int, Event]]:
        """Read the state and new events, fold the events into `view`, and return them with their
        ranks. Stops after about `budget` seconds, or when there are no more."""
        self.state, now = self.run.state(), time.monotonic()
        # Ranks on other nodes, or started by a person's own launcher, may appear late.
        if not self.ranks or now - self._looked >= 1.0:
            self._looked, ranks = now, self.run.ranks()
            self._reader.add(ranks)
            self.view.add(ranks)
        fresh = [(rank, event) for rank, events in self._reader.read(budget) for event in events]
        for rank, event in fresh:
            self.view.fold(rank, event)
        return fresh

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, and a moment after the run's state was written."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._stamp() == self._seen:
            time.sleep(min(left, _MOMENT))
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            return job.stamp(self.run.path)
        except OSError:
            return None

    def progress(self) -> Progress:
        return self.view.progress()
