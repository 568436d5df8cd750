"""The runs on disk, as the runs pane shows them. Blocks: called in a thread, one call at a time.

Every run gets its line first, from a few small files of its folder; the figures of those that have
ended are then read little by little, the ones on the screen first. A finished run is read again
only when its folder says that something has changed. So a thousand of them cost nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TypeVar

from gpu_engine.common import paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.launching.reattach import reattach_all
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import notes, waiting
from gpu_engine.runs import summary as digests
from gpu_engine.runs.folder import Run
from gpu_engine.runs.summary import Digest
from gpu_engine.runs.waiting import Entry
from gpu_engine.sweep.figures import FiguresOf
from gpu_panel import readonly
from gpu_panel.common import errors
from gpu_panel.launch.runs.figures import LiveRun, with_end
from gpu_panel.launch.runs.line import RunLine

T = TypeVar("T")
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
class _Known:
    """What is remembered of a run."""

    stamp: object
    """Its line holds until this is another; None: it is to be looked at anew."""
    digest: Digest | None
    """None: it could not be looked at for a fault of ours."""
    line: RunLine
    reading: LiveRun | None = None
    """Of a live run, whose stamp is None."""
    whole: bool = False
    """Whether the least and the greatest of its values are known."""


class RunsFeed:
    """Reads the runs and remembers what it has read between refreshes."""

    def __init__(self) -> None:
        self.first: tuple[str, ...] = ()
        self.values = False
        """Whether the values that runs have recorded are wanted, from all of their events."""
        self._runs: dict[str, Run] = {}
        self._order: list[str] = []
        """Ids of all runs listed so far, but for those in the queue, newest first."""
        self._turn = 0
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._known: dict[str, _Known] = {}
        self._line: dict[str, Entry] = {}
        self._ensured: float | None = None
        """When it was last seen to that somebody starts them, monotonic seconds."""
        self.news: str | None = None
        """What the person should be told once; whoever tells it sets it to None."""

    @cached_property
    def _values(self) -> FiguresOf:
        """Their file is read when a column first asks for them."""
        return FiguresOf()

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
        found = [one.line for one in self._known.values() if not one.line.waits]
        found.sort(key=lambda line: (not line.live, -line.created))
        self._order = [line.id for line in found]
        waiting = self._waiting()
        queue = [waiting[name].line for name in self._line if name in waiting]
        live = sum(line.live for line in found)
        return [*found[:live], *queue, *found[live:]], unlisted + unread

    def relist(self) -> None:
        """List the folder again at the next refresh, and check every run for changes: a resume
        does not change the folder's time stamp."""
        self._folder_stamp = None
        for known in self._known.values():
            known.stamp = None

    def _waiting(self) -> dict[str, _Known]:
        """The runs in the queue."""
        return {name: one for name, one in self._known.items() if one.line.waits}

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
        self._known = {k: v for k, v in self._known.items() if k in self._runs}

    def _read_queued(self) -> None:
        """Look at the runs that have entered, left or moved in the queue since the last time."""
        line, before = waiting.line(paths.queue_folder()), self._line
        if line is not before:
            self._line = line
            for name in [n for n in self._waiting() if line.get(n) is not before.get(n)]:
                self._read_safely(self._runs[name])
        if line and not readonly.on:
            self._have_them_started(line.values())

    def _have_them_started(self, line: Iterable[Entry]) -> None:
        """See that somebody starts the runs in the queue: after a reboot nobody does. A run that
        has just been submitted is left to whoever did that."""
        now = time.monotonic()
        if self._ensured is not None and now - self._ensured < _AGAIN:
            return
        here, before = socket.gethostname(), time.time() - _AGAIN
        if not any(entry.host == here and entry.submitted < before for entry in line):
            return
        self._ensured = now
        from gpu_engine.queue import serve  # only where runs wait

        try:
            if count := serve.ensure():
                self.news = "The queue had stopped, and runs again: " \
                            f"{count:,} run{' waits' if count == 1 else 's wait'} in it"
        except UserError as err:
            self.news = str(err)

    def _read_new(self) -> int:
        """Look at runs that are not listed yet, newest first. Returns how many are left."""
        new = [run for name, run in self._runs.items() if name not in self._known]
        # The order in which they ended or began, as far as the folders tell without being read.
        new.sort(key=_changed, reverse=True)
        if new:  # one at least, however slow the disk is
            self._read_safely(new[0])
        return _for_a_while(new[1:], LISTING, self._read_safely)

    def _due(self) -> list[str]:
        """The runs to be checked for changes now."""
        older = [*self._order[NEWEST:], *self._waiting()]
        turn = older[self._turn:self._turn + _RECHECKED]
        self._turn = self._turn + _RECHECKED if self._turn + _RECHECKED < len(older) else 0
        anew = [name for name, known in self._known.items() if known.stamp is None]
        first = [name for name in islice(self._line, NEWEST) if name in self._known]
        return [name for name in dict.fromkeys((*self._order[:NEWEST], *first, *turn, *anew))
                if name in self._runs]

    def _wanted(self, whole: bool) -> list[_Known]:
        """The runs that have ended and whose figures are not read yet, or not as a `whole`; those
        on the screen first."""
        found = (self._known.get(name)
                 for name in dict.fromkeys((*self.first, *self._order, *self._known)))
        return [one for one in found if one is not None and one.reading is None
                and one.digest is not None and not one.line.waits
                and not (one.whole if whole else one.line.read)]

    def _read_figures(self, seconds: float) -> int:
        """Read figures for the first time, for so long. Returns how many runs are left."""
        def read(known: _Known) -> None:
            assert known.digest is not None
            try:
                known.line = with_end(known.line, known.digest)
            except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
                errors.record(err)
                known.line = _broken(known.line.run, err)

        return _for_a_while(self._wanted(whole=False), seconds, read)

    def _read_values(self, seconds: float) -> int:
        """Read what runs have recorded, for so long; what was read once is in a file. Returns how
        many runs are left."""
        def read(known: _Known) -> None:
            assert known.digest is not None
            known.whole = True  # also if that fails: its column stays empty
            try:
                found = self._values.read(known.line.run, known.digest.state)
            except Exception as err:  # noqa: BLE001  the run is listed all the same
                errors.record(err)
            else:
                known.line = replace(known.line, values=found.values)

        wanted = self._wanted(whole=True)
        left = _for_a_while(wanted, seconds, read)
        if wanted and not left and not readonly.on:
            self._values.save()
        return left

    def _read_safely(self, run: Run) -> None:
        """Look at a run. If that fails for any reason, show it as unreadable, so that one bad run
        does not hide all others."""
        try:
            self._read_run(run)
        except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
            before = self._known.get(run.id)
            if before is None or before.digest is not None:
                errors.record(err)
            self._known[run.id] = _Known("unreadable", None, _broken(run, err))

    def _read_run(self, run: Run) -> None:
        entry = self._line.get(run.id)
        try:
            stamp: object = (jobs.stamp(run.path), notes.stamp(run.path), entry,
                             entry is not None and run.supervised())
        except OSError:
            stamp = "no state.json"
            if not run.path.is_dir():
                self._known.pop(run.id, None)
                return
        before = self._known.get(run.id)
        if before is not None and before.stamp == stamp:
            return
        reading = before.reading if before is not None else None
        digest = digests.read(run, before.digest if before is not None and reading else None)
        found = _Known(stamp, digest, _line(digest))
        if entry is not None and digest.state.state == "queued":
            found.line = replace(found.line, waits=True, read=True)
        elif digest.state.live:
            # The devices and processes of a job may be another machine's.
            here = digest.state.boot in (None, procs.boot_id())
            found.stamp, found.reading = None, reading or LiveRun(run)
            found.line = found.reading.read(found.line, here)
        elif before is not None and before.digest == digest and not before.line.waits:
            found.line = before.line  # only looked at anew
        elif before is not None:  # until the new ones have been read
            old = before.line
            found.line = replace(found.line, step=old.step, total=old.total, loss=old.loss,
                                 history=old.history, values=old.values)
        self._known[run.id] = found


def _for_a_while(wanted: Sequence[T], seconds: float, work: Callable[[T], object]) -> int:
    """Do this work for each, for so long. Returns how many are left."""
    end = time.monotonic() + seconds
    for done, one in enumerate(wanted):
        if time.monotonic() > end:
            return len(wanted) - done
        work(one)
    return 0


def _broken(run: Run, error: Exception) -> RunLine:
    return RunLine(run, run.id, "", 1, "unreadable", False, 0.0,
                   reason=f"can't be shown: {type(error).__name__}; see {errors.log_path()}")


def _line(digest: Digest) -> RunLine:
    """What a digest says about its run; its figures are not known yet."""
    state, run = digest.state, digest.run
    job = jobs.read(run.path)
    return RunLine(run, digest.name, digest.mode, digest.replicas, state.state, state.live,
                   state.created, state.ended, state.reason, started=state.started,
                   job=job is not None and job.doubt is None, preset=state.name, task=digest.task,
                   tags=digest.notes.tags, note=digest.notes.note,
                   warnings=tuple(one.message for one in state.warnings),
                   seconds=state.took(time.time()), sweep=digest.sweep,
                   settings=digest.settings, read=False)


def _changed(run: Run) -> float:
    with suppress(OSError):
        return os.stat(run.path).st_mtime  # noqa: PTH116  a thousand of them
    return 0.0
