"""Who holds most of a memory, worked out from what was allocated and freed. Pure.

Standard library and Python 3.9 syntax only: a rank uses it, and so does who reads its files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Tuple  # noqa: UP035

Action = Tuple[int, int, Optional[str]]  # noqa: UP006
"""(address, bytes, place): more than 0 bytes are allocated there by this place, less are freed."""
MOST = 20
"""Places that are told."""


class Place(NamedTuple):
    """What one line of code, or one operator, holds."""

    place: str
    bytes: int
    blocks: int


class Held(NamedTuple):
    """What is held at one moment."""

    places: list[Place]
    """Those that hold most, most first."""
    bytes: int
    """Of all places, and `early`."""
    early: int
    """Bytes of these whose place is not known, as they were allocated before anybody noted it."""


def held(actions: Sequence[Action], at_end: Mapping[int, tuple[int, str | None]] | None = None,
         moment: int | None = None) -> Held:
    """Who holds what after the first `moment` actions; None: when most is held.

    `at_end`: (bytes, place) by address of everything that is held after the last action.
    """
    if moment is None:
        now = most = moment = 0
        for number, (_, size, _) in enumerate(actions, 1):
            now += size
            if now > most:
                most, moment = now, number
    live: dict[int, tuple[int, str | None]] = {}
    then: list[tuple[int, str | None]] = []
    early = 0
    for number, (address, size, place) in enumerate(actions):
        if number == moment:
            then = list(live.values())
        if size > 0:
            live[address] = size, place
        elif live.pop(address, None) is None and number >= moment:
            early -= size  # it was there before the first action
    if moment == len(actions):
        then = list(live.values())
    then += [block for address, block in (at_end or {}).items() if address not in live]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for size, place in then:
        if place is None:
            early += size
        else:
            sums[place][0] += size
            sums[place][1] += 1
    places = sorted((Place(place, size, count) for place, (size, count) in sums.items()),
                    key=lambda one: -one.bytes)
    return Held(places[:MOST], sum(p.bytes for p in places) + early, early)
