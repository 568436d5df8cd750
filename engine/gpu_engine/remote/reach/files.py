"""Which files of a run go from one machine to another, by name.

A name comes from the other side, so it is one of few, or it is refused: none can leave the folder
that it is for.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from gpu_engine.events.paths import DEVICES

SUPERVISOR = "supervisor.log"
_FILE = re.compile(r"ranks/(?P<rank>[0-9]{5})\.(?:jsonl|log)|node(?P<node>[0-9]{1,4})\.log")


class At(NamedTuple):
    """How far a file is known, and the check (CRC-32) of the last bytes of that."""

    name: str
    offset: int
    checked: int = 0
    """How many bytes before `offset` the check is of."""
    crc: int = 0


def is_events(name: str) -> bool:
    """Whether it only ever grows; logs are cut when they have grown too large."""
    return name.endswith(".jsonl")


def here(name: str, host: str = "", ranks: Collection[int] | None = None, node: int = 0
         ) -> str | None:
    """Where the file that a host with these ranks (None: all) and this node calls `name` lies in
    the run folder here; None where it is none of its files. `host` is the name that the person gave
    it."""
    if name in (SUPERVISOR, DEVICES):
        return f"hosts/{host}.{'log' if name == SUPERVISOR else DEVICES}"
    found = _FILE.fullmatch(name)
    own = found is not None and (ranks is None or (
        int(found["rank"]) in ranks if found["rank"] else int(found["node"]) == node))
    return name if own else None
