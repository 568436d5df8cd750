"""The runs on disk, as the runs pane shows them. Blocks: called in a thread, one call at a time.

Every run gets its line first, from a few small files of its folder; the figures of those that have
ended are then read little by little, the ones on the screen first. A finished run is read again
only when its folder says that something has changed, and one that waits in the queue only when the
line has; what they all wait for stands in one file. So a thousand of them cost nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_engine.common import paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside
from gpu_engine.launching.reattach import reattach_all
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import notes, waiting
from gpu_engine.runs import summary as digests
from gpu_engine.runs.folder import Run, State
from gpu_panel import readonly
from gpu_panel.common import errors
from gpu_panel.launch.runs.figures import LiveRun, with_end
from gpu_panel.launch.runs.line import RunLine

if TYPE_CHECKING:
    from gpu_engine.runs.summary import Digest
    from gpu_engine.runs.waiting import Entry, Reasons
    from gpu_engine.sweep.figures import FiguresOf

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
    whole: bool = False
    """Whether the least and the greatest of its values are known."""


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
        self.values = False
        """Whether the values that runs have recorded are wanted, from all of their events."""
        self._values: FiguresOf | None = None
        self._runs: dict[str, Run] = {}
        self._order: list[str] = []
        """Ids of all runs listed so far, newest first."""
        self._turn = 0
        """The index of the older run that is checked for changes next."""
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._kept: dict[str, _Kept] = {}
        self._live: dict[str, _Live] = {}
        self._waits: dict[str, _Kept] = {}
        """Runs in the queue."""
        self._line: dict[str, Entry] = {}
        """The queue, as it was read last."""
        self._reasons: dict[str, Reasons] = {}
        """What the runs in it wait for, by the machine on which they wait."""
        self._ensured: float | None = None
        """When it was last seen to that somebody starts them, monotonic seconds."""
        self.news: str | None = None
        """What the person should be told once; whoever tells it sets it to None."""
        self._bad: dict[str, RunLine] = {}
        """Runs that could not be looked at for a fault of ours."""
        self._recorded: set[str] = set()
        """Ids of runs whose failure to be shown is in the log already."""

    def refresh(self) -> tuple[list[RunLine], int]:
        """Every run listed so far, live ones first, then those in the queue in its order, then the
        newest; and the number of runs that are still to be listed, or whose figures are still to
        be read."""
        self._list()
        self._read_queued()
        for name in self._due():
            self._read_safely(self._runs[name])
        unlisted = self._read_new()
        unread = self._read_figures(0.0 if unlisted else SPELL)
        if self.values and not unlisted + unread:
            unread = self._read_values(SPELL)
        found = [one.line for one in (*self._live.values(), *self._kept.values())]
        found += self._bad.values()
        found.sort(key=lambda line: (not line.live, -line.created))
        self._order = [line.id for line in found]
        queue = [self._waits[name].line for name in self._line if name in self._waits]
        live = sum(line.live for line in found)
        return [*found[:live], *queue, *found[live:]], unlisted + unread

    def relist(self) -> None:
        """List the folder again at the next refresh, and check every run for changes: a resume
        does not change the folder's time stamp."""
        self._folder_stamp = None
        for kept in (*self._kept.values(), *self._waits.values()):
            kept.stamp = None

    def _list(self) -> None:
        """List the folder if it has changed, and every 30 s, as a change within one tick of the
        file system's clock is not seen. Runs on other machines that nobody mirrors any more are
        then mirrored again."""
        try:
            stamp = paths.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = None
        now = time.monotonic()
        if stamp == self._folder_stamp and now - self._listed_at < _AGAIN:
            return
        self._folder_stamp, self._listed_at = stamp, now
        if not readonly.on:
            reattach_all()
        self._runs = {run.id: run for run in runs.each_run()}
        self._kept = {k: v for k, v in self._kept.items() if k in self._runs}
        self._live = {k: v for k, v in self._live.items() if k in self._runs}
        self._waits = {k: v for k, v in self._waits.items() if k in self._runs}
        self._bad = {}

    def _read_queued(self) -> None:
        """Look at the runs that have entered, left or moved in the queue since the last time, and
        see what the others wait for now."""
        folder = paths.queue_folder()
        line, before = waiting.line(folder), self._line
        if line is not before:
            self._line = line
            for name in [n for n in self._waits if line.get(n) is not before.get(n)]:
                self._read_safely(self._runs[name])
        reasons = {host: waiting.reasons(folder, host)
                   for host in {entry.host for entry in line.values()}}
        # A reason without a board depends on how long the run has waited.
        if reasons != self._reasons or any(r.board is None for r in reasons.values()):
            self._reasons = reasons
            for name, kept in self._waits.items():
                self._say_why(name, kept)
        if line and not readonly.on:
            self._have_them_started(line.values())

    def _say_why(self, name: str, kept: _Kept) -> None:
        entry = self._line.get(name)
        if entry is not None and entry.host in self._reasons:
            reason = self._reasons[entry.host].of(name, entry)
            if reason != kept.line.reason:
                kept.line = replace(kept.line, reason=reason)

    def _have_them_started(self, line: Iterable[Entry]) -> None:
        """See that somebody starts the runs in the queue: after a reboot nobody does. A run that
        has just been submitted is left to whoever did that."""
        now = time.monotonic()
        if self._ensured is not None and now - self._ensured < _AGAIN:
            return
        here, before = socket.gethostname(), time.time() - _AGAIN
        count = sum(entry.host == here and entry.submitted < before for entry in line)
        if not count:
            return
        self._ensured = now
        from gpu_engine.queue import waiter  # only where runs wait

        try:
            if waiter.ensure():
                self.news = "The queue had stopped, and runs again: " \
                            f"{count:,} run{' waits' if count == 1 else 's wait'} in it"
        except UserError as err:
            self.news = str(err)

    def _read_new(self) -> int:
        """Look at runs that are not listed yet, newest first. Returns how many are left."""
        new = [run for name, run in self._runs.items()
               if not any(name in seen
                          for seen in (self._kept, self._live, self._waits, self._bad))]
        # The order in which they ended or began, as far as the folders tell without being read.
        new.sort(key=_changed, reverse=True)
        end = time.monotonic() + LISTING
        for done, run in enumerate(new):
            if done and time.monotonic() > end:
                return len(new) - done
            self._read_safely(run)
        return 0

    def _due(self) -> list[str]:
        """The runs to be checked for changes now."""
        older = [*self._order[NEWEST:], *self._waits]
        turn = older[self._turn:self._turn + _RECHECKED]
        self._turn = self._turn + _RECHECKED if self._turn + _RECHECKED < len(older) else 0
        anew = [name for name, kept in (*self._kept.items(), *self._waits.items())
                if kept.stamp is None]
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

    def _read_values(self, seconds: float) -> int:
        """Read what runs have recorded, for so long; what was read once is in a file. Returns how
        many runs are left."""
        if self._values is None:
            from gpu_engine.sweep.figures import FiguresOf  # only where a column asks for it

            self._values = FiguresOf()
        wanted = [kept for name in dict.fromkeys((*self.first, *self._order))
                  if (kept := self._kept.get(name)) is not None and not kept.whole]
        end = time.monotonic() + seconds
        for done, kept in enumerate(wanted):
            if time.monotonic() > end:
                return len(wanted) - done
            kept.whole = True  # also if that fails: its column stays empty
            try:
                found = self._values.read(kept.line.run, kept.digest.state)
            except Exception as err:  # noqa: BLE001  the run is listed all the same
                errors.record(err)
            else:
                kept.line = replace(kept.line, values=found.values)
        if wanted and not readonly.on:
            self._values.save()
        return 0

    def _read_safely(self, run: Run) -> None:
        """Look at a run. If that fails for any reason, show it as unreadable, so that one bad run
        does not hide all others."""
        try:
            self._read_run(run)
        except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
            self._forget(run)
            self._bad[run.id] = self._broken(run, err)

    def _broken(self, run: Run, error: Exception) -> RunLine:
        if run.id not in self._recorded:
            self._recorded.add(run.id)
            errors.record(error)
        return RunLine(run, run.id, "", 1, "unreadable", False, 0.0,
                       reason=f"can't be shown: {type(error).__name__}; see {errors.log_path()}")

    def _read_run(self, run: Run) -> None:
        try:
            stamp: object = (jobs.stamp(run.path), notes.stamp(run.path), self._line.get(run.id))
        except OSError:
            stamp = "no state.json"
            if not run.path.is_dir():
                self._forget(run)
                return
        kept, live = self._kept.get(run.id), self._live.get(run.id)
        kept = kept or self._waits.get(run.id)
        if kept is not None and kept.stamp == stamp:
            return
        waits = self._waiting(run)
        digest = digests.read(run, live.digest if live is not None else None, waits)
        line = _line(digest)
        self._forget(run)
        if waits is not None:
            found = _Kept(stamp, digest, replace(line, waits=True, read=True))
            self._say_why(run.id, found)
            self._waits[run.id] = found
            return
        if digest.state.live:
            # The devices and processes of a job may be another machine's.
            here = digest.state.boot in (None, procs.boot_id())
            reading = live.reading if live is not None else LiveRun(run)
            self._live[run.id] = _Live(reading, digest, reading.read(line, here))
            return
        if kept is not None and kept.digest == digest:  # only looked at anew
            line = kept.line
        elif (old := kept or live) is not None:  # until the new ones have been read
            line = replace(line, step=old.line.step, total=old.line.total, loss=old.line.loss,
                           history=old.line.history, values=old.line.values)
        self._kept[run.id] = _Kept(stamp, digest, line)

    def _waiting(self, run: Run) -> State | None:
        """The state of a run that is in the queue, without the reason; else None."""
        if run.id not in self._line:
            return None
        state = State.from_dict(json_inside(run.path, "state.json"))
        return state if state is not None and state.state == "queued" and state.pid is None \
            else None

    def _forget(self, run: Run) -> None:
        for known in (self._kept, self._live, self._waits):
            known.pop(run.id, None)


def _line(digest: Digest) -> RunLine:
    """What a digest says about its run; its figures are not known yet."""
    state, run = digest.state, digest.run
    job = jobs.read(run.path)
    return RunLine(run, digest.name, digest.mode, digest.replicas, state.state, state.live,
                   state.created, state.ended, state.reason, started=state.started,
                   job=job is not None and job.doubt is None, preset=state.name, task=digest.task,
                   tags=digest.notes.tags, note=digest.notes.note, debugged=digest.debugged,
                   warnings=tuple(one.message for one in state.warnings),
                   seconds=state.took(time.time()), sweep=digest.sweep,
                   settings=digest.settings, read=False)


def _changed(run: Run) -> float:
    with suppress(OSError):
        return os.stat(run.path).st_mtime  # noqa: PTH116  a thousand of them
    return 0.0
