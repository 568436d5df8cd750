"""Which devices have been free for some looks in a row. Pure.

One look can be a moment between two processes of somebody's script, so a person who waits for a
device is told only once it has stayed free.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_engine.devices.availability import Availability

LOOKS = 3
"""How many looks in a row must find a device free."""


class Steady:
    """Counts looks at which a device was free."""

    def __init__(self, looks: int = LOOKS) -> None:
        self._looks = looks
        self._times: dict[str, int] = {}

    def update(self, freedom: Mapping[str, Availability]) -> frozenset[str]:
        """Take in what one look has found, by a device's id or any other key. Returns the keys of
        those that have been free for long enough."""
        self._times = {key: min(self._times.get(key, 0) + 1, self._looks)
                       for key, found in freedom.items() if found.free}
        return frozenset(k for k, times in self._times.items() if times == self._looks)
