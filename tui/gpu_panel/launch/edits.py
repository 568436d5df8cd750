"""The edits of a draft, to undo and redo them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_MOST = 200
"""Edits that can be undone."""


@dataclass(frozen=True, slots=True)
class State:
    """A draft at one moment. Nothing in it is ever changed."""

    data: Mapping[str, Any]
    aside: Mapping[str, Any]
    """Keys of `parallel` that the mode does not use."""
    by_hand: bool


class Edits:
    """What the person has changed. Typing on in one field is one edit."""

    def __init__(self, state: State) -> None:
        self._now = state
        self._past: list[State] = []
        self._future: list[State] = []
        self._key: str | None = None
        """The key of the last edit, as long as another one of it belongs to the same edit."""

    def note(self, state: State) -> bool:
        """Take note of the draft after a change. False if nothing has changed."""
        keys = _changed(self._now, state)
        if not keys:
            return False
        key = next(iter(keys)) if len(keys) == 1 else None
        if key is None or key != self._key:
            self._past = [*self._past, self._now][-_MOST:]
        self._now, self._key, self._future = state, key, []
        return True

    def seal(self) -> None:
        """The next change is an edit of its own, as the person has left the field."""
        self._key = None

    def forget_undone(self) -> None:
        """What was undone can't be done again: the draft is replaced by another."""
        self._future = []

    def looked_up(self, state: State) -> None:
        """Take note that the preset's devices are known now, in `state`: that is no edit."""
        devices = state.data.get("devices")

        def known(earlier: State) -> State:
            return earlier if earlier.by_hand else \
                replace(earlier, data={**earlier.data, "devices": devices})

        self._past, self._future = [*map(known, self._past)], [*map(known, self._future)]
        self._now = state

    @property
    def can_undo(self) -> bool:
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        return bool(self._future)

    def undo(self) -> State | None:
        """The draft before the last edit; None if there is none."""
        if not self._past:
            return None
        self._future.append(self._now)
        self._now, self._key = self._past.pop(), None
        return self._now

    def redo(self) -> State | None:
        """The draft after the edit that was undone last; None if there is none."""
        if not self._future:
            return None
        self._past.append(self._now)
        self._now, self._key = self._future.pop(), None
        return self._now


def _changed(before: State, after: State) -> set[str]:
    """The dotted keys whose values differ."""
    old, new = _flat(before.data), _flat(after.data)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def _flat(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value and above != "task.params.":
            found |= _flat(value, f"{above}{name}.")
        elif not isinstance(value, Mapping) or value:
            found[above + name] = value
    return found
