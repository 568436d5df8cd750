"""Exports a run to a target: once, or until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_engine.export.row import About, Anew, Row, Target
from gpu_engine.export.source import Source
from gpu_engine.runs import attempts, notes
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_dict

_LOOK_EVERY = 0.5
"""Seconds between two readings of a live run."""
_ANEW_EVERY = 2.0
"""Seconds between two beginnings of the same export, at least."""

GoesOn = Callable[[State], bool]


class Failed(UserError):
    """The export can't be finished, for a reason outside the command line: exit code 1."""

    title = "The export failed"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    run: str
    where: str
    """For people."""
    rows: int
    last_step: int | None
    state: State
    skipped: int
    """Lines of events files that can't be read."""
    late: int
    """Steps of some rank that were recorded too late to count in the mean of their step."""
    interrupted: bool = False
    """Whether it was asked to end before the run had."""


def about(run: Run, state: State) -> About:
    """What a target is told of the run. What can't be read of its spec is left out."""
    written = notes.read(run.path)
    try:
        config = to_dict(from_dict(attempts.read_spec(run)))
    except (UserError, OSError):
        config = {}
    return About(run.id, written.name or state.name, state.created, config, written.tags,
                 written.note)


def export(run: Run, open_target: Callable[[], Target], *, rank: int | None = None) -> Exported:
    """Write what the run has recorded up to now. Raises UserError; then nothing is left under the
    final name that was not there before."""
    return _Export(run, open_target, rank).once()


def follow(run: Run, open_target: Callable[[], Target], goes_on: GoesOn, *,
           rank: int | None = None, said: Callable[[str], None] = lambda text: None,
           stopped: Callable[[], bool] = lambda: False) -> Exported:
    """Write what the run has recorded, and go on until it has ended. `goes_on`: whether a run in
    this state goes on. `said`: is given a sentence when the first rows can be seen. `stopped`:
    whether to end now, with all that is recorded. Raises UserError; what could be seen before then
    stays."""
    return _Export(run, open_target, rank).to_the_end(goes_on, said, stopped)


class _Export:
    def __init__(self, run: Run, open_target: Callable[[], Target], rank: int | None) -> None:
        self._run, self._open, self._rank = run, open_target, rank
        self._last: Row | None = None
        self._stepped: Row | None = None
        """The last row of a step."""
        self._rows = 0

    def once(self) -> Exported:
        target = self._open()
        while True:
            source = self._begin(target)
            try:
                with self._taken_back(target):
                    state = self._state()
                    self._write(target, source.final_rows())
                    self._state()  # is it still there?
                    return self._close(target, source, state)
            except Anew:  # another attempt has begun meanwhile
                time.sleep(_ANEW_EVERY)

    def to_the_end(self, goes_on: GoesOn, said: Callable[[str], None],
                   stopped: Callable[[], bool]) -> Exported:
        if not goes_on(self._state()):
            return self.once()
        target, first = self._open(), True
        while True:
            source = self._begin(target)
            began = time.monotonic()
            try:
                with self._taken_back(target):
                    self._write(target, source.rows(live=True))
                    target.publish()
                    if first:
                        said(f"following {self._run.id}, {self._rows:,} rows so far")
                    first = False
                    return self._on(target, source, goes_on, stopped)
            except Anew:
                time.sleep(max(began + _ANEW_EVERY - time.monotonic(), 0))

    def _on(self, target: Target, source: Source, goes_on: GoesOn, stopped: Callable[[], bool]
            ) -> Exported:
        """Go on until the run has ended, or `stopped`. Raises Anew."""
        while True:
            ends = stopped()
            state = self._state()
            live = goes_on(state) and not ends
            before = self._rows
            self._write(target, source.rows(live=True) if live else source.final_rows())
            if not live:
                return self._close(target, source, state, ends)
            if self._rows > before:
                target.publish()
            time.sleep(_LOOK_EVERY)

    def _begin(self, target: Target) -> Source:
        self._last, self._stepped, self._rows = None, None, 0
        state = self._state()
        with self._taken_back(target):
            target.begin(about(self._run, state))
            return Source(self._run.path, self._rank)

    def _write(self, target: Target, rows: Iterable[Row]) -> None:
        last = self._stepped
        for row in rows:
            # What an attempt evaluates before its first step takes no step away.
            if any(name.startswith("train/") for name in row.values):
                if last is not None and row.attempt > last.attempt and row.step <= last.step:
                    target.rewind(row.step)
                self._stepped = last = row
            target.write(row)
            self._last = row
            self._rows += 1

    def _close(self, target: Target, source: Source, state: State, interrupted: bool = False
               ) -> Exported:
        where = target.close()
        return Exported(self._run.id, where, self._rows,
                        self._last.step if self._last is not None else None, state,
                        source.skipped, source.late, interrupted)

    def _state(self) -> State:
        if not self._run.path.is_dir():
            raise Failed(f"run {self._run.id} was removed meanwhile; {self._run.path} is not there "
                         "any more")
        return self._run.state()

    @contextmanager
    def _taken_back(self, target: Target) -> Iterator[None]:
        """If the block fails, take back what must not be seen of it."""
        try:
            yield
        except OSError as err:
            target.abandon()
            where = f"{err.filename}: " if err.filename else ""
            raise Failed(f"run {self._run.id} can't be exported: {where}{reason(err)}") from None
        except BaseException:
            target.abandon()
            raise
