"""The edits of a draft, to undo and redo them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_MOST = 200


@dataclass(frozen=True, slots=True)
class State:
    """A draft at one moment. Nothing in it is ever changed."""

    data: Mapping[str, Any]
    aside: Mapping[str, Any]
    by_hand: bool


class Edits:
    """What the person has changed. Typing on in one field is one edit."""

    def __init__(self, state: State) -> None:
        self._now = state
        self.past: list[State] = []
        self.future: list[State] = []
        self._key: str | None = None
        """The key of the last edit, as long as another one of it belongs to the same edit."""

    def note(self, state: State) -> bool:
        """Take note of the draft after a change. False if nothing has changed."""
        keys = _changed(self._now, state)
        if not keys:
            return False
        key = next(iter(keys)) if len(keys) == 1 else None
        if key is None or key != self._key:
            self.past = [*self.past, self._now][-_MOST:]
        self._now, self._key, self.future = state, key, []
        return True

    def seal(self) -> None:
        """The next change is an edit of its own, as the person has left the field."""
        self._key = None

    def looked_up(self, state: State) -> None:
        """Take note that the preset's devices are known now, in `state`: that is no edit."""
        devices = state.data.get("devices")

        def known(earlier: State) -> State:
            return earlier if earlier.by_hand else \
                replace(earlier, data={**earlier.data, "devices": devices})

        self.past, self.future = [*map(known, self.past)], [*map(known, self.future)]
        self._now = state

    def undo(self) -> State | None:
        """The draft before the last edit; None if there is none."""
        return self._go(self.past, self.future)

    def redo(self) -> State | None:
        """The draft after the edit that was undone last; None if there is none."""
        return self._go(self.future, self.past)

    def _go(self, there: list[State], back: list[State]) -> State | None:
        if not there:
            return None
        back.append(self._now)
        self._now, self._key = there.pop(), None
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
