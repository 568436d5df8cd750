"""What is known about the compared runs. One task reads what their ranks append.

Reading and parsing happen in a thread, a bounded batch of each run at a time; folding happens in
the event loop, so that a pane never sees half a batch. A run keeps one value's curves, of a few
ranks; for another value its files are read again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.events.paths import ranks_with_files
from gpu_engine.events.reader import RunReader
from gpu_engine.events.schema import Event
from gpu_engine.events.view import RunView
from gpu_engine.runs import compare
from gpu_engine.runs.compare import Figures, RunFacts
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run, State
from gpu_panel.common.reading import Followed
from gpu_panel.compare.curve import LOSS, RunCurve

MOST = 16
"""The most runs that are compared at once."""
CURVED = 8
"""Ranks of each run, the first ones, whose values make the curve."""
_BATCH = 0.02
"""Seconds of reading at a time, over all runs, before the event loop runs again."""
_PIECE = 1 << 16
"""Bytes that are read of a file at a time: not many, as each turn reads some of every run."""
_LOOK_EVERY, _LIVE_EVERY, _DONE_EVERY = 1.0, 0.5, 2.0
"""Seconds between reads of the states, and between reads while a run is live and when none is."""


class Compared:
    """One of the runs: its state, the view of its events, its curve, its facts."""

    def __init__(self, run: Run, name: str = LOSS) -> None:
        self.run = run
        self.id = clean(run.id)
        """Its id, to be shown: a folder may have any name."""
        self.state: State | None = None
        self.problem: str | None = None
        self._told: RunFacts | None = None
        self.anew(name)

    def anew(self, name: str) -> None:
        self.view = RunView()
        self.curve = RunCurve(name)
        self._reader = RunReader(self.run.path)
        if self.state is not None:
            self.curve.learn(self.state)

    @property
    def facts(self) -> RunFacts:
        told = self._told or RunFacts(self.id, self.id, Figures("…"), {}, Environment())
        return told if self.state is None else compare.with_figures(told, self.state, self.view)

    @property
    def live(self) -> bool:
        return self.state is None or self.state.live

    def share(self) -> float:
        """The share of its events that has been read, 0 to 1."""
        return self._reader.share()

    def poll(self) -> bool:
        """Read its state, and its facts for each attempt. Returns whether that changed. Blocks."""
        before, self.state = self.state, self.run.state()
        if before is None or before.attempt != self.state.attempt:
            try:
                self._told = compare.without_figures(self.run, self.state)
                self.problem = None
            except (UserError, OSError) as err:
                self.problem = str(err)
                self._told = RunFacts(self.id, self.state.name, Figures(self.state.state), {},
                                      Environment())
        self.curve.learn(self.state)
        return self.state != before

    def read(self, seconds: float) -> list[tuple[int, list[Event]]]:
        """New events of its ranks. Blocks."""
        try:
            self._reader.add(ranks_with_files(self.run.path))
        except OSError:
            return []
        return self._reader.read(seconds, _PIECE)

    def fold(self, fresh: Iterable[tuple[int, list[Event]]]) -> None:
        for rank, events in fresh:
            for event in events:
                self.view.fold(rank, event)
            if rank < CURVED:
                self.curve.add(rank, *events)


class CompareStore(Followed):
    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self.runs = [Compared(run) for run in runs[:MOST]]
        self.name = LOSS
        self.read_share = 0.0
        self._looked = 0.0
        self._turn = 0
        """Rises when another value is chosen, as what is read then belongs to the old one."""

    @property
    def facts(self) -> list[RunFacts]:
        return [one.facts for one in self.runs]

    @property
    def names(self) -> dict[str, int]:
        """The values that were found so far, and how many runs have each."""
        return dict(Counter(name for one in self.runs for name in one.curve.names))

    def choose(self, name: str) -> None:
        if name != self.name:
            self.name, self.caught_up, self.read_share = name, False, 0.0
            self._turn += 1
            self.version += 1
            for one in self.runs:
                one.anew(name)

    async def read_on(self) -> float:
        turn = self._turn
        fresh, changed = await asyncio.to_thread(self._read)
        if turn != self._turn:  # some of it may have been read for the new value
            for one in self.runs:
                one.anew(self.name)
            return 0.0
        for one, events in fresh:
            one.fold(events)
            await asyncio.sleep(0)
        if not self.caught_up:
            self.read_share = sum(one.share() for one in self.runs) / max(len(self.runs), 1)
            self.caught_up = not fresh
            changed = True
        self.version += bool(fresh or changed)
        if fresh:
            return 0.0
        return _LIVE_EVERY if self.live else _DONE_EVERY

    @property
    def live(self) -> bool:
        return any(one.live for one in self.runs)

    def _read(self) -> tuple[list[tuple[Compared, list[tuple[int, list[Event]]]]], bool]:
        """(new events of each run, whether a state has changed). Blocks: called in a thread."""
        now = time.monotonic()
        changed = False
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            changed = sum(one.poll() for one in self.runs) > 0  # each is looked at
        found = [(one, one.read(_BATCH / len(self.runs))) for one in self.runs]
        return [(one, events) for one, events in found if events], changed
