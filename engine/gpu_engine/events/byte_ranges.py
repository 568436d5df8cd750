"""Where in an events file which steps are, to read a part of it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_engine.events.schema import Event, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_engine.events.frequent import EventOrBatch

MOST = 4096
"""Pieces that are told apart. Of more, neighbours are joined."""


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of the file, in bytes, and the steps that its events are of."""

    begin: int
    end: int
    first: int
    last: int


class Places:
    """The pieces of one file, in its order. Steps may be in several of them: a later attempt goes
    back to earlier steps."""

    def __init__(self) -> None:
        self._each: list[Place] = []

    def note(self, begin: int, end: int, told: Iterable[EventOrBatch]) -> None:
        """Note that the piece from `begin` to `end` has these events."""
        spans = [span for one in told if (span := _steps(one)) is not None]
        if not spans:
            return
        self._each.append(Place(begin, end, min(s[0] for s in spans), max(s[1] for s in spans)))
        if len(self._each) > MOST:
            self._each = [_joined(*self._each[i:i + 2]) for i in range(0, len(self._each), 2)]

    def of(self, first: int, last: int) -> list[tuple[int, int]]:
        """The pieces (begin, end) with steps from `first` to `last`, those that touch in one."""
        found: list[tuple[int, int]] = []
        for place in list(self._each):
            if place.first <= last and place.last >= first:
                if found and found[-1][1] == place.begin:
                    found[-1] = (found[-1][0], place.end)
                else:
                    found.append((place.begin, place.end))
        return found


def _joined(one: Place, other: Place | None = None) -> Place:
    if other is None:
        return one
    return Place(one.begin, other.end, min(one.first, other.first), max(one.last, other.last))


def _steps(told: EventOrBatch) -> tuple[int, int] | None:
    """The first and the last step of an event or a batch; None: it has none."""
    if isinstance(told, Event):
        steps = [told] if isinstance(told, Step) else []
    else:
        steps = told.steps
    if not steps:
        return None
    return min(e.step - max(e.n, 1) + 1 for e in steps), max(e.step for e in steps)
