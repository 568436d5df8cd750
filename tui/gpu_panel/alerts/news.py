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


class RunsNews:
    def __init__(self) -> None:
        self._awake: dict[str, RunWatch] = {}
        self._asleep: dict[str, tuple[Run, object]] = {}
        """Runs that don't, each with the time stamp of its state."""
        self._known: set[str] | None = None
        """All ids in the folder when it was listed last; None before the first time."""
        self._stamp: int | None = None

    def note(self, training: Iterable[Run], others: Iterable[Run]) -> None:
        """Follow these runs: `training` train now, `others` may do so later."""
        for run in training:
            if run.id not in self._awake:
                self._asleep.pop(run.id, None)
                self._awake[run.id] = _watch(run)
        for run in others:
            if run.id not in self._awake and run.id not in self._asleep:
                self._asleep[run.id] = run, _stamp(run)

    def poll(self) -> list[News]:
        """Look once at all runs. Returns what is new of them."""
        self._find()
        self._wake()
        found: list[News] = []
        for name, watch in list(self._awake.items()):
            stamp = _stamp(watch.run)  # before the look, so that nothing is missed after it
            happened = watch.next_event()
            if happened is not None and happened.event in TOLD:
                found.append(News(watch.run, summary.read(watch.run).name, happened))
            state = watch.state
            if state is None:
                del self._awake[name]
            elif state.state == "queued" or (not state.live and watch.is_over()):
                del self._awake[name]
                self._asleep[name] = watch.run, stamp
        return found

    def _find(self) -> None:
        try:
            stamp = paths.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == self._stamp:
            return
        self._stamp, before = stamp, self._known
        self._known = set()
        for run in each_run():
            self._known.add(run.id)
            if before is not None and run.id not in before and run.id not in self._asleep:
                self._awake.setdefault(run.id, _watch(run))

    def _wake(self) -> None:
        """Follow the runs whose state has changed: their turn has come, or they were resumed."""
        for name, (run, stamp) in list(self._asleep.items()):
            now = _stamp(run)
            if now != stamp:
                del self._asleep[name]
                if now is not None:
                    self._awake[name] = _watch(run)


def _watch(run: Run) -> RunWatch:
    return RunWatch(run, goes_on=StillOn(run))


def _stamp(run: Run) -> object:
    """Changes when the run's state may have changed; None if it was removed."""
    with suppress(OSError):
        return job.stamp(run.path)
    return None
