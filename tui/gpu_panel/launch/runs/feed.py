"""The runs on disk, as the runs pane shows them. Blocks: called in a thread, one call at a time.

Every run gets its line first, from a few small files of its folder; the figures of those that have
ended are then read little by little, the ones on the screen first. A finished run is read again
only when its folder says that something has changed, so that a thousand of them cost nothing.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_engine.common import places, procs
from gpu_engine.launch.taking_up import take_up_all
from gpu_engine.runs import digest as digests
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import notes
from gpu_engine.runs.digest import Digest
from gpu_engine.runs.folder import Run
from gpu_panel.common import errors
from gpu_panel.launch.runs.figures import LiveRun, with_end
from gpu_panel.launch.runs.line import RunLine

NEWEST = 50
"""The newest runs, which are checked for changes at each refresh, as the live ones are."""
LISTING = 0.4
"""Seconds that a refresh spends on listing runs for the first time."""
SPELL = 0.15
"""Seconds that a refresh spends on reading figures for the first time."""
_RECHECKED = 40
"""Older runs that are checked for changes at each refresh."""
_AGAIN = 30.0
"""Seconds after which the folder is listed again even if it looks unchanged."""


@dataclass(slots=True)
class _Kept:
    """What is remembered of a run that is not live."""

    stamp: object
    digest: Digest
    line: RunLine


@dataclass(slots=True)
class _Live:
    """What is remembered of a live run."""

    reading: LiveRun
    digest: Digest
    line: RunLine


class RunsFeed:
    """Reads the runs and remembers what it has read between refreshes."""

    def __init__(self) -> None:
        self.first: tuple[str, ...] = ()
        """Ids of the runs whose figures are wanted first."""
        self._runs: dict[str, Run] = {}
        self._order: list[str] = []
        """Ids of all runs listed so far, newest first."""
        self._turn = 0
        """The index of the older run that is checked for changes next."""
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._kept: dict[str, _Kept] = {}
        self._live: dict[str, _Live] = {}
        self._bad: dict[str, RunLine] = {}
        """Runs that could not be looked at for a fault of ours."""
        self._recorded: set[str] = set()
        """Ids of runs whose failure to be shown is in the log already."""

    def refresh(self) -> tuple[list[RunLine], int]:
        """Every run listed so far, live ones first, then the newest; and the number of runs that
        are still to be listed, or whose figures are still to be read."""
        self._list()
        for name in self._due():
            self._look_safely(self._runs[name])
        unlisted = self._look_at_new()
        unread = self._read_figures(0.0 if unlisted else SPELL)
        found = [one.line for one in (*self._live.values(), *self._kept.values())]
        found += self._bad.values()
        found.sort(key=lambda line: (not line.live, -line.created))
        self._order = [line.id for line in found]
        return found, unlisted + unread

    def look_anew(self) -> None:
        """List the folder again at the next refresh, and check every run for changes: a resume
        does not change the folder's time stamp."""
        self._folder_stamp = None
        self._kept = {name: _Kept(None, kept.digest, kept.line)
                      for name, kept in self._kept.items()}

    def _list(self) -> None:
        """List the folder if it has changed, and every 30 s, as a change within one tick of the
        file system's clock is not seen. Runs on other machines that nobody mirrors any more are
        then mirrored again."""
        try:
            stamp = places.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = None
        now = time.monotonic()
        if stamp == self._folder_stamp and now - self._listed_at < _AGAIN:
            return
        self._folder_stamp, self._listed_at = stamp, now
        take_up_all()
        self._runs = {run.id: run for run in runs.each_run()}
        self._kept = {k: v for k, v in self._kept.items() if k in self._runs}
        self._live = {k: v for k, v in self._live.items() if k in self._runs}
        self._bad = {}

    def _look_at_new(self) -> int:
        """Look at runs that are not listed yet, newest first. Returns how many are left."""
        new = [run for name, run in self._runs.items()
               if not any(name in seen for seen in (self._kept, self._live, self._bad))]
        # The order in which they ended or began, as far as the folders tell without being read.
        new.sort(key=_changed, reverse=True)
        end = time.monotonic() + LISTING
        for done, run in enumerate(new):
            if done and time.monotonic() > end:
                return len(new) - done
            self._look_safely(run)
        return 0

    def _due(self) -> list[str]:
        """The runs to be checked for changes now."""
        older = self._order[NEWEST:]
        turn = older[self._turn:self._turn + _RECHECKED]
        self._turn = self._turn + _RECHECKED if self._turn + _RECHECKED < len(older) else 0
        anew = [name for name, kept in self._kept.items() if kept.stamp is None]
        return [name for name in dict.fromkeys((*self._live, *self._order[:NEWEST], *turn, *anew))
                if name in self._runs]

    def _read_figures(self, seconds: float) -> int:
        """Read figures for the first time, for so long. Returns how many runs are left."""
        wanted = [name for name in dict.fromkeys((*self.first, *self._order, *self._kept))
                  if (kept := self._kept.get(name)) is not None and not kept.line.read]
        end = time.monotonic() + seconds
        for done, name in enumerate(wanted):
            if time.monotonic() > end:
                return len(wanted) - done
            kept = self._kept[name]
            try:
                kept.line = with_end(kept.line, kept.digest)
            except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
                kept.line = self._broken(kept.line.run, err)
        return 0

    def _look_safely(self, run: Run) -> None:
        """Look at a run. If that fails for any reason, show it as unreadable, so that one bad run
        does not hide all others."""
        try:
            self._look(run)
        except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
            self._live.pop(run.id, None)
            self._kept.pop(run.id, None)
            self._bad[run.id] = self._broken(run, err)

    def _broken(self, run: Run, error: Exception) -> RunLine:
        if run.id not in self._recorded:
            self._recorded.add(run.id)
            errors.record(error)
        return RunLine(run, run.id, "", 1, "unreadable", False, 0.0,
                       reason=f"can't be shown: {type(error).__name__}; see {errors.log_path()}")

    def _look(self, run: Run) -> None:
        try:
            stamp: object = (jobs.stamp(run.path), notes.stamp(run.path))
        except OSError:
            stamp = "no state.json"
            if not run.path.is_dir():
                self._kept.pop(run.id, None)
                self._live.pop(run.id, None)
                return
        kept, live = self._kept.get(run.id), self._live.get(run.id)
        if kept is not None and kept.stamp == stamp:
            return
        digest = digests.read(run, live.digest if live is not None else None)
        line = _line(digest)
        if digest.state.live:
            self._kept.pop(run.id, None)
            # The devices and processes of a job may be another machine's.
            here = digest.state.boot in (None, procs.boot_id())
            reading = live.reading if live is not None else LiveRun(run)
            self._live[run.id] = _Live(reading, digest, reading.read(line, here))
            return
        self._live.pop(run.id, None)
        if kept is not None and kept.digest == digest:  # only looked at anew
            line = kept.line
        elif (old := kept or live) is not None:  # until the new ones have been read
            line = replace(line, step=old.line.step, total=old.line.total, loss=old.line.loss,
                           history=old.line.history)
        self._kept[run.id] = _Kept(stamp, digest, line)


def _line(digest: Digest) -> RunLine:
    """What a digest says about its run; its figures are not known yet."""
    state, run = digest.state, digest.run
    job = jobs.read(run.path)
    return RunLine(run, digest.name, digest.mode, digest.replicas, state.state, state.live,
                   state.created, state.ended, state.reason, started=state.started,
                   job=job is not None and job.doubt is None, preset=state.name, task=digest.task,
                   tags=digest.notes.tags, note=digest.notes.note,
                   seconds=state.took(time.time()), read=False)


def _changed(run: Run) -> float:
    with suppress(OSError):
        return os.stat(run.path).st_mtime  # noqa: PTH116  a thousand of them
    return 0.0
