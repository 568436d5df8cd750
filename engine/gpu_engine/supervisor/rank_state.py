"""What the supervisor knows about one rank in one attempt, from the rank's own events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpu_engine.diagnose.hangs import Standstill
from gpu_engine.events import schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import RunView

_AT_ONCE = 1 << 23
"""Bytes to read at once while the ranks run, as the supervisor must also react to signals."""


@dataclass(slots=True)
class RankState:
    """One rank. Its events are read all the time, so that the end of a long run needs no long
    reading."""

    rank: int
    tail: Tail
    attempt: int
    begun: bool = False
    """Whether it has written the start event of this attempt."""
    ours: bool = False
    """Whether the events that come now belong to this attempt."""
    warned: str = ""
    """The reason in the last warning that it has no events; see `scripts.warn_unseen`."""
    looked: float = field(default_factory=time.monotonic)
    """When that was last checked, or when the rank was started; monotonic seconds."""
    judged: bool = False
    """Whether that was checked after its end."""
    moved: float = 0.0
    """When its step, phase or detail last changed, monotonic seconds."""
    heard: float = 0.0
    """When its last event was read, monotonic seconds."""
    run_view: RunView = field(default_factory=RunView)
    """What its events of this attempt say, as a run of this rank alone."""

    def __post_init__(self) -> None:
        self.run_view.add((self.rank,))

    @classmethod
    def from_now(cls, rank: int, tail: Tail, attempt: int) -> RankState:
        """For a rank that is about to be started: the events in its file so far are skipped, as
        they belong to earlier attempts."""
        tail.skip()
        return cls(rank, tail, attempt, ours=True)

    @property
    def view(self) -> RankView:
        """What its events of this attempt say."""
        return self.run_view.ranks[self.rank]

    def read(self, *, to_the_end: bool = True) -> None:
        """Read the new events, all of them or a bounded amount."""
        limit = self.tail.offset + _AT_ONCE
        while to_the_end or self.tail.offset < limit:
            before = self.tail.offset
            for event in self.tail.read():
                self.fold(event)
            if self.tail.offset == before:
                return

    def fold(self, event: schema.Event) -> None:
        """Take in one event."""
        if isinstance(event, schema.Start):
            self.begun = self.ours = event.attempt == self.attempt
        elif not self.ours:
            return
        before = self._place()
        self.run_view.fold(self.rank, event)
        if self.ours:
            self.heard = time.monotonic()
            if self._place() != before:
                self.moved = self.heard

    def _place(self) -> tuple[object, ...]:
        """The values that change when the rank moves. A growing checkpoint counts like a step; a
        rank that waits for another reports the other's progress in `detail`."""
        view = self.view
        return view.at_step, view.phase, view.phase_since, view.written, view.detail

    def still_saving(self, now: float, patience: float) -> bool:
        """Whether a checkpoint is being written and has grown within `patience` seconds."""
        return self.view.saving and not self.view.ended and now - self.moved < patience

    def standing(self, now: float) -> Standstill:
        """For how long it has stood still. `now`: monotonic seconds."""
        view = self.view
        return Standstill(self.rank, view.at_step, view.phase, now - self.moved, now - self.heard)
