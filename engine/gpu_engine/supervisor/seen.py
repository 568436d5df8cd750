"""What the supervisor needs of a rank's events in one attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from gpu_engine.events.hang import Sign
from gpu_engine.events.schema import Tail

_AT_ONCE = 1 << 23
"""Bytes to read while the ranks run: whoever supervises must also hear signals."""


@dataclass(slots=True)
class Seen:
    """One rank, read as it goes along: a file of days must not be read when the run ends."""

    rank: int
    tail: Tail
    attempt: int
    pid: int | None = None
    ticks: int | None = None
    """Its start, in clock ticks since boot."""
    error: dict[str, Any] | None = None
    outcome: str | None = None
    begun: bool = False
    """Whether it has said that it began."""
    ours: bool = False
    """Whether what comes now is of this attempt."""
    ended: bool = False
    warned: str = ""
    """What was said of why nothing is seen of it."""
    looked: float = field(default_factory=time.monotonic)
    """Monotonic seconds when that was last looked into, else when it was started."""
    judged: bool = False
    """Whether that was done after its end."""
    stepped: bool = False
    """Whether a step was done in this attempt: what comes before may take as long as it likes."""
    place: tuple[Any, ...] = (None, None, None)
    """Step, phase and since when, as last told."""
    saving: bool = False
    """Whether it writes a checkpoint."""
    detail: str | None = None
    written: int | None = None
    """Bytes of that checkpoint, as last told."""
    moved: float = 0.0
    """Monotonic seconds when `place` last changed."""
    heard: float = 0.0
    """Monotonic seconds of the last event."""

    @classmethod
    def from_now(cls, rank: int, tail: Tail, attempt: int) -> Seen:
        """Of a rank that is about to be started: what its file holds is of earlier attempts."""
        tail.skip()
        return cls(rank, tail, attempt, ours=True)

    def read(self, *, to_the_end: bool = True) -> None:
        """Take in what is new."""
        limit = self.tail.offset + _AT_ONCE
        while to_the_end or self.tail.offset < limit:
            before = self.tail.offset
            for event in self.tail.read():
                self._take(event)
            if self.tail.offset == before:
                return

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "start":
            self.begun = self.ours = event.get("attempt", 1) == self.attempt
            self.pid, self.ticks = event.get("pid"), event.get("started")
            self.error = self.outcome = self.written = None
            self.ended = self.stepped = self.saving = False
        if not self.ours:
            return
        self.heard = time.monotonic()
        if kind == "error" and self.error is None:
            self.error = event
        elif kind == "end":
            self.outcome, self.ended = event.get("outcome"), True
        elif kind == "step":
            self.stepped = True
            self._at(event.get("step"), *self.place[1:])
        elif kind == "phase":
            self._at(event.get("step"), event.get("phase"), event.get("since"))
            self._saves(event)

    def _at(self, *place: Any) -> None:
        if place != self.place:
            self.place, self.moved = place, self.heard

    def _saves(self, event: dict[str, Any]) -> None:
        """Bytes that come to a checkpoint are a sign of life like a step."""
        done = event.get("done")
        self.saving = event.get("phase") == "checkpoint" or done is not None
        detail = event.get("detail")  # a rank that waits tells how far the other is
        if (done, detail) != (self.written, self.detail):
            self.written, self.detail, self.moved = done, detail, self.heard

    def still_saving(self, now: float, patience: float) -> bool:
        """Whether a checkpoint is being written and has grown within `patience` seconds."""
        return self.saving and not self.ended and now - self.moved < patience

    def sign(self, now: float) -> Sign:
        """How long it has stood still at `now`, monotonic seconds."""
        step, phase, _ = self.place
        return Sign(self.rank, step if isinstance(step, int) else None,
                    phase if isinstance(phase, str) else None, now - self.moved, now - self.heard)
