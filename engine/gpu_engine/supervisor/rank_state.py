"""What the supervisor knows of one rank in one attempt, by the rank's own events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gpu_engine.events import schema
from gpu_engine.events.hang import Standstill
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import RunView

_AT_ONCE = 1 << 23
"""Bytes to read while the ranks run: whoever supervises must also hear signals."""


@dataclass(slots=True)
class RankState:
    """One rank, read as it goes along: a file of days must not be read when the run ends."""

    rank: int
    tail: Tail
    attempt: int
    begun: bool = False
    """Whether it has said that it began this attempt."""
    ours: bool = False
    """Whether what comes now is of this attempt."""
    warned: str = ""
    """What was said of why nothing is seen of it."""
    looked: float = field(default_factory=time.monotonic)
    """Monotonic seconds when that was last looked into, else when it was started."""
    judged: bool = False
    """Whether that was done after its end."""
    moved: float = 0.0
    """Monotonic seconds when its step, phase or what it is busy with last changed."""
    heard: float = 0.0
    """Monotonic seconds of the last event."""
    _run: RunView = field(default_factory=RunView)

    def __post_init__(self) -> None:
        self._run.add((self.rank,))

    @classmethod
    def from_now(cls, rank: int, tail: Tail, attempt: int) -> RankState:
        """Of a rank that is about to be started: what its file holds is of earlier attempts."""
        tail.skip()
        return cls(rank, tail, attempt, ours=True)

    @property
    def view(self) -> RankView:
        """What its events of this attempt say."""
        return self._run.ranks[self.rank]

    def read(self, *, to_the_end: bool = True) -> None:
        """Take in what is new."""
        limit = self.tail.offset + _AT_ONCE
        while to_the_end or self.tail.offset < limit:
            before = self.tail.offset
            for event in self.tail.read():
                self.take(event)
            if self.tail.offset == before:
                return

    def take(self, event: schema.Event) -> None:
        """Take in one event."""
        if isinstance(event, schema.Start):
            self.begun = self.ours = event.attempt == self.attempt
        elif not self.ours:
            return
        before = self._place()
        self._run.fold(self.rank, event)
        if self.ours:
            self.heard = time.monotonic()
            if self._place() != before:
                self.moved = self.heard

    def _place(self) -> tuple[object, ...]:
        """What is another once it has got on. Bytes that come to a checkpoint are a sign of life
        like a step, and a rank that waits tells how far the other is."""
        view = self.view
        return view.at_step, view.phase, view.phase_since, view.written, view.detail

    def still_saving(self, now: float, patience: float) -> bool:
        """Whether a checkpoint is being written and has grown within `patience` seconds."""
        return self.view.saving and not self.view.ended and now - self.moved < patience

    def standing(self, now: float) -> Standstill:
        """How long it has stood still at `now`, monotonic seconds."""
        view = self.view
        return Standstill(self.rank, view.at_step, view.phase, now - self.moved, now - self.heard)
