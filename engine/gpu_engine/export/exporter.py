"""Exports a run to a target: once, or until the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_engine.export.rows import Source
from gpu_engine.export.target import About, Anew, Row, Target
from gpu_engine.runs import attempts, notes
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import for_people, to_dict

_LOOK_EVERY = 0.5
"""Seconds between two readings of a live run."""
_ANEW_EVERY = 2.0
"""Seconds between two beginnings of the same export, at least."""


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
    interrupted: bool
    """Whether it was asked to end before the run had."""


def about(run: Run, state: State) -> About:
    """What a target is told of the run. What can't be read of its spec is left out."""
    written = notes.read(run.path)
    try:
        config = to_dict(for_people(from_dict(attempts.read_spec(run))))
    except (UserError, OSError):
        config = {}
    return About(run.id, written.name or state.name, state.created, config, written.tags,
                 written.note)


def export(run: Run, open_target: Callable[[], Target],
           goes_on: Callable[[State], bool] = lambda state: False, *, rank: int | None = None,
           said: Callable[[str], None] = lambda text: None,
           stopped: Callable[[], bool] = lambda: False) -> Exported:
    """Write what the run has recorded, and go on until it has ended. `goes_on`: whether a run in
    this state goes on. `said`: is given a sentence when the first rows can be seen. `stopped`:
    whether to end now, with all that is recorded. Raises UserError; what could be seen before then
    stays, and of a run that does not go on nothing is seen before all is written."""
    one = _Export(run, rank)
    target, told = open_target(), False
    while True:
        source, began = one.begin(target), time.monotonic()
        try:
            with one.taken_back(target):
                while True:
                    ends, before = stopped(), one.rows
                    state = one.state()
                    live = goes_on(state) and not ends
                    one.write(target, source.rows(live=True) if live else source.final_rows())
                    if not live:
                        one.state()  # is it still there?
                        return one.close(target, source, state, ends)
                    if one.rows > before or not told:
                        target.publish()
                    if not told:
                        said(f"following {run.id}, {one.rows:,} rows so far")
                        told = True
                    time.sleep(_LOOK_EVERY)
        except Anew:  # a new name, or another attempt has begun meanwhile
            time.sleep(max(began + _ANEW_EVERY - time.monotonic(), 0))


class _Export:
    def __init__(self, run: Run, rank: int | None) -> None:
        self._run, self._rank = run, rank
        self._last: Row | None = None
        self._stepped: Row | None = None
        self.rows = 0

    def begin(self, target: Target) -> Source:
        self._last, self._stepped, self.rows = None, None, 0
        state = self.state()
        with self.taken_back(target):
            target.begin(about(self._run, state))
            return Source(self._run.path, self._rank)

    def write(self, target: Target, rows: Iterable[Row]) -> None:
        last = self._stepped
        for row in rows:
            # What an attempt evaluates before its first step takes no step away.
            if any(name.startswith("train/") for name in row.values):
                if last is not None and row.attempt > last.attempt and row.step <= last.step:
                    target.rewind(row.step)
                self._stepped = last = row
            target.write(row)
            self._last = row
            self.rows += 1

    def close(self, target: Target, source: Source, state: State, interrupted: bool) -> Exported:
        where = target.close()
        return Exported(self._run.id, where, self.rows,
                        self._last.step if self._last is not None else None, state,
                        source.skipped, source.late, interrupted)

    def state(self) -> State:
        if not self._run.path.is_dir():
            raise Failed(f"run {self._run.id} was removed meanwhile; {self._run.path} is not there "
                         "any more")
        return self._run.state()

    @contextmanager
    def taken_back(self, target: Target) -> Iterator[None]:
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
