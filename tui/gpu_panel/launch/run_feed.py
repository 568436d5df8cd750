"""The runs on disk, as the runs pane shows them. Blocks: called in a thread, one call at a time.

Every run gets its line first, from a few small files of its folder; the figures of those that have
ended are then read little by little, the ones on the screen first. A finished run is read again
only when its folder says that something has changed. So a thousand of them cost nothing.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from gpu_engine.common import paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.series import Series
from gpu_engine.diagnose import hangs
from gpu_engine.events.schema import Eval, Metric, Step
from gpu_engine.events.track import EVAL, LOSS
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import digest as digests
from gpu_engine.runs import folder as runs
from gpu_engine.runs import job as jobs
from gpu_engine.runs import notes, trust, waiting
from gpu_engine.runs.digest import Summary
from gpu_engine.runs.folder import LIVE, Run
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.waiting import Entry
from gpu_panel import readonly
from gpu_panel.common import errors
from gpu_panel.launch import row_keys
from gpu_panel.launch.run_line import RunLine

T = TypeVar("T")
NEWEST = 50
"""The newest runs, which are checked for changes at each refresh, as the live ones are."""
SCREEN = 100
"""Runs that the first refresh lists at most, so that a person sees the newest at once."""
LISTING = 1.0
"""Seconds that a refresh spends on listing runs for the first time."""
SPELL = 0.15
"""Seconds that a refresh spends on reading figures for the first time."""
_AGAIN = 30.0
"""Seconds after which the folder is listed again even if it looks unchanged, and older runs are
checked for changes."""


@dataclass(slots=True)
class _Known:
    """What is remembered of a run."""

    stamp: object
    """Its line holds until this is another; None: it is to be looked at anew."""
    summary: Summary | None
    """None: it could not be looked at for a fault of ours."""
    line: RunLine
    reading: LiveRun | None = None
    """Of a live run, whose stamp is None."""


class RunsFeed:
    """Reads the runs and remembers what it has read between refreshes."""

    def __init__(self) -> None:
        self.first: tuple[str, ...] = ()
        self._runs: dict[str, Run] = {}
        self._order: list[str] = []
        """Ids of all runs listed so far, but for those in the queue, newest first."""
        self._new: list[Run] = []
        """Those that are not listed yet, the newest first."""
        self._all = False
        """Whether all runs are to be checked for changes."""
        self._folder_stamp: int | None = None
        self._listed_at = 0.0
        self._known: dict[str, _Known] = {}
        self._told: object = None
        """What the last refresh has found, in no order."""
        self._found: tuple[RunLine, ...] = ()
        self._line: dict[str, Entry] = {}
        self._ensured: float | None = None
        """When it was last seen to that somebody starts them, monotonic seconds."""
        self.news: str | None = None
        """What the person should be told once; whoever tells it sets it to None."""

    def refresh(self) -> tuple[tuple[RunLine, ...], int]:
        """Every run listed so far, live ones first, then those in the queue in its order, then the
        newest, in the same tuple as before where nothing has changed; and the number of runs that
        are still to be listed, or whose figures are still to be read."""
        self._list()
        self._read_queued()
        for name in self._due():
            self._read_safely(self._runs[name])
        unlisted = self._read_new()
        unread = self._read_figures(0.0 if unlisted else SPELL)
        told = [one.line for one in self._known.values()], self._line
        if told != self._told:  # mostly these are the very same objects, which is seen at once
            self._told = told
            found = sorted((line for line in told[0] if not line.waits),
                           key=lambda line: (not line.live, -line.created))
            self._order = [line.id for line in found]
            waiting = self._waiting()
            queue = [waiting[name].line for name in self._line if name in waiting]
            live = sum(line.live for line in found)
            self._found = (*found[:live], *queue, *found[live:])
        return self._found, unlisted + unread

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
        file system's clock is not seen."""
        try:
            stamp = paths.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = None
        now = time.monotonic()
        if stamp == self._folder_stamp and now - self._listed_at < _AGAIN:
            return
        self._folder_stamp, self._listed_at, self._all = stamp, now, True
        self._runs = {run.id: run for run in runs.each_run()}
        self._known = {k: v for k, v in self._known.items() if k in self._runs}
        # In the order in which they ended or began, as far as the folders tell without being read.
        self._new = sorted((run for name, run in self._runs.items() if name not in self._known),
                           key=_changed, reverse=True)

    def _read_queued(self) -> None:
        """Look at the runs that have entered, left or moved in the queue since the last time."""
        line, before = waiting.line(paths.queue_folder()), self._line
        if line is not before:
            self._line = line
            for name in [n for n in self._waiting() if line.get(n) is not before.get(n)]:
                self._read_safely(self._runs[name])
        if not readonly.on:
            self._have_them_started(line.values())

    def _have_them_started(self, line: Iterable[Entry]) -> None:
        """See that somebody starts the runs in the queue, and the next ones of a sweep of which
        none waits: after a reboot nobody does. A run that has just been submitted is left to
        whoever did that."""
        now = time.monotonic()
        if self._ensured is not None and now - self._ensured < _AGAIN:
            return
        here, before = socket.gethostname(), time.time() - _AGAIN
        if not any(entry.host == here and entry.submitted < before for entry in line) \
                and not any(paths.queue_folder().glob("s*.lock")):
            return
        self._ensured = now
        from gpu_engine.queue import serve  # only where runs wait

        try:
            if serve.ensure():
                self.news = "The queue had stopped, and goes on with what waits in it"
        except UserError as err:
            self.news = str(err)

    def _read_new(self) -> int:
        """Look at runs that are not listed yet, newest first. Returns how many are left."""
        if new := self._new:  # one at least, however slow the disk is
            self._read_safely(new[0])
            wanted = new[1:] if self._order else new[1:SCREEN]
            left = _for_a_while(wanted, LISTING, self._read_safely)
            self._new = new[1 + len(wanted) - left:]
        return len(self._new)

    def _due(self) -> list[str]:
        """The runs to be checked for changes now: the newest, those next in the queue and those
        that are to be looked at anew."""
        anew = [name for name, known in self._known.items() if known.stamp is None]
        first = [name for name in islice(self._line, NEWEST) if name in self._known]
        older = [*self._order, *self._waiting()] if self._all else ()
        self._all = False
        return [name for name in dict.fromkeys((*self._order[:NEWEST], *first, *older, *anew))
                if name in self._runs]

    def _read_figures(self, seconds: float) -> int:
        """Read figures for the first time, for so long. Returns how many runs are left."""
        def read(known: _Known) -> None:
            try:
                run = known.line.run
                known.summary = digests.summary(run, digests.make(run, keep=not readonly.on))
                known.line = _line(known.summary, next(iter(run.odd()), None))
            except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
                errors.record(err)
                known.line = _broken(known.line.run, err)

        unread = {name: one for name, one in self._known.items() if not one.line.read
                  and one.reading is None and one.summary is not None and not one.line.waits}
        # Those on the screen first.
        order = dict.fromkeys((*self.first, *self._order, *unread)) if unread else ()
        return _for_a_while([unread[name] for name in order if name in unread], seconds, read)

    def _read_safely(self, run: Run) -> None:
        """Look at a run. If that fails for any reason, show it as unreadable, so that one bad run
        does not hide all others."""
        try:
            self._read_run(run)
        except Exception as err:  # noqa: BLE001  shown in its line, with the traceback in the log
            before = self._known.get(run.id)
            if before is None or before.summary is not None:
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
        digest, state = digests.find(run), None
        if digest is None:
            state = run.state()
            digest = digests.of(run, state, before.summary.digest if before is not None and reading
                                and before.summary else None)
        summary = digests.summary(run, digest)
        # Of a folder whose digest was kept nothing was odd but, since then, whose it is.
        why = trust.why_not_ours(run.path) if digest.figures is not None else None
        found = _Known(stamp, summary, _line(summary, f"only shown: {why}" if why else None))
        if digest.figures is not None:
            pass
        elif entry is not None and digest.state == "queued":
            found.line = replace(found.line, waits=True, read=True)
        elif state is not None and state.live:
            # The devices and processes of a job may be another machine's.
            here = state.boot in (None, procs.boot_id())
            found.stamp, found.reading = None, reading or LiveRun(run)
            found.line = found.reading.read(found.line, here, digest.best)
        elif before is not None and before.summary == summary and not before.line.waits:
            found.line = before.line  # only looked at anew
        elif before is not None:  # until the new ones have been read
            old = before.line
            found.line = replace(found.line, step=old.step, total=old.total, loss=old.loss,
                                 history=old.history)
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


def _line(one: Summary, odd: str | None = None) -> RunLine:
    """The line of a run; its figures are not known yet, if its digest has none."""
    run, said, read = one.run, one.digest, one.digest.figures is not None
    job, end = jobs.read(run.path), said.figures or digests.Figures()
    by = digests.compared_by(said.best, end.values)
    return RunLine(run, one.name, said.mode, said.replicas, said.state, said.state in LIVE,
                   said.created, said.ended, said.reason, end.steps, end.total, end.loss,
                   end.means, end.samples_per_s, end.steps_per_s, started=said.started,
                   job=job is not None and job.doubt is None, preset=said.preset, task=said.task,
                   tags=one.notes.tags, note=one.notes.note, verdict=one.notes.verdict,
                   warnings=said.warnings, seconds=said.seconds, sweep=one.sweep, odd=odd,
                   best=by.best(end.values), by=by, settings=said.settings, read=read)


def _changed(run: Run) -> float:
    with suppress(OSError):
        return os.stat(run.path).st_mtime  # noqa: PTH116  a thousand of them
    return 0.0


# --- the figures of one run -------------------------------------------------------------------

_POINTS = 256
"""The most points of a live run's loss curve."""
_BUDGET = 0.05
"""Seconds that one reading of a live run may take."""


def _best(values: Series | None, largest: bool) -> float | None:
    """As `By.best`."""
    if not values or values.bad[-1]:
        return None
    return max(values.hi) if largest else min(values.lo)


class LiveRun:
    """A live run, and what has been read of it."""

    def __init__(self, run: Run) -> None:
        self._follower = Follower(run)
        self._series = {LOSS: Series(_POINTS)}
        """Of the first rank's loss, and of the value by which runs are compared: name → values."""
        self._plan: LaunchPlan | None = None
        self._odd = next(iter(run.odd()), None)

    def read(self, line: RunLine, here: bool, asked: str | None) -> RunLine:
        """`line` with what is known now. `here`: whether its processes are this machine's. `asked`:
        the value by which it is compared, as in the digest."""
        if self._plan is None:
            self._plan = line.run.plan()
        plan, follower, curve = self._plan, self._follower, self._series[LOSS]
        wanted = digests.compared_by(asked, ()).name
        for rank, event in follower.poll(budget=_BUDGET):
            if isinstance(event, Step) and event.loss is not None and rank == min(follower.ranks):
                curve.cut(event.step - event.n + 1)  # thrown away by a restart
                every = event.losses or (event.loss,)
                curve.add(event.step, event.loss, min(every), max(every))
            elif isinstance(event, Eval | Metric) and event.step is not None:
                name = EVAL * isinstance(event, Eval) + wanted
                if name != LOSS and (value := event.values.get(wanted)) is not None:
                    values = self._series.setdefault(name, Series(_POINTS))
                    values.cut(event.step)
                    values.add(event.step, value)
        now = follower.progress()
        node = plan.node_rank if plan is not None else 0
        pids = tuple((view.pid, rank) for rank, view in follower.ranks.items()
                     if view.pid is not None and view.node in (None, node)
                     and not (plan is not None and plan.on_hosts))
        by = digests.compared_by(asked, self._series)
        line = replace(
            line, step=now.step, total=now.total_steps, loss=now.loss, pids=pids, read=True,
            odd=self._odd, by=by, best=_best(self._series.get(by.name), by.largest),
            # Of the buckets that have any value; NaN for one that has no finite one.
            history=tuple(total / count if count else math.nan for total, count, bad in
                          zip(curve.total, curve.count, curve.bad, strict=True) if count or bad),
            devices=tuple((row_keys.of(r.host, d.id), r.rank)
                          for r in plan.ranks for d in r.devices) if here and plan else ())
        if follower.behind:
            return line
        if line.state == "running" and (still := hangs.alarm_of(
                follower.ranks.values(), line.run.path, time.time(), follower.state.unheard)):
            return replace(line, still=still)
        return replace(line, samples_per_s=now.samples_per_s, steps_per_s=now.steps_per_s,
                       seconds_left=follower.state.left(now.seconds_left, time.time()))
