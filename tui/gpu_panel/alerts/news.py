"""What has happened to runs since the panel opened. Blocks: called in a thread, one call at a time.

Runs are looked at whichever screen is shown. Of a run that does not train, as one that waits in a
queue or has ended, only the time stamp of its state is looked at, so that a thousand of them cost
little.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gpu_engine.common import paths
from gpu_engine.launching.reattach import StillOn
from gpu_engine.notify.watch import Happened, RunWatch
from gpu_engine.runs import job, summary
from gpu_engine.runs.folder import Run, each_run

TOLD = frozenset({"finished", "failed", "stalled", "lost"})
"""Who has stopped a run knows that it is stopped."""


@dataclass(frozen=True, slots=True)
class News:
    run: Run
    name: str
    happened: Happened


class _Followed:
    def __init__(self, run: Run, *, awake: bool) -> None:
        self.run = run
        self.watch = RunWatch(run, goes_on=StillOn(run)) if awake else None
        """None: nothing can happen to it before the time stamp of its state changes."""
        self.stamp = _stamp(run)

    def look(self) -> Happened | None:
        before, self.stamp = self.stamp, _stamp(self.run)
        if self.watch is None and self.stamp != before:
            self.watch = RunWatch(self.run, goes_on=StillOn(self.run))
        if self.watch is None:
            return None
        happened, state = self.watch.next_event(), self.watch.state
        if state is None or state.state == "queued" or (not state.live and self.watch.is_over()):
            self.watch = None
        return happened


class RunsNews:
    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._known: set[str] | None = None
        """All ids in the folder when it was listed last; None before the first time."""
        self._listed: int | None = None

    def note(self, training: Iterable[Run], others: Iterable[Run]) -> None:
        """Follow these runs: `training` train now, `others` may do so later."""
        for runs, awake in ((training, True), (others, False)):
            for run in runs:
                if run.id not in self._followed:
                    self._followed[run.id] = _Followed(run, awake=awake)

    def poll(self) -> list[News]:
        """Look once at all runs. Returns what is new of them."""
        self._list()
        news: list[News] = []
        for name, one in list(self._followed.items()):
            happened = one.look()
            if happened is not None and happened.event in TOLD:
                news.append(News(one.run, summary.read(one.run).name, happened))
            if one.stamp is None:  # it was removed
                del self._followed[name]
        return news

    def _list(self) -> None:
        """Follow the runs that are new in the folder."""
        try:
            stamp = paths.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp != self._listed:
            self._listed, before = stamp, self._known
            runs = list(each_run())
            self._known = {run.id for run in runs}
            self.note([] if before is None else [run for run in runs if run.id not in before
                                                 and run.id not in self._followed], [])


def _stamp(run: Run) -> object:
    """Changes when the run's state may have changed; None if it was removed."""
    with suppress(OSError):
        return job.stamp(run.path)
    return None
