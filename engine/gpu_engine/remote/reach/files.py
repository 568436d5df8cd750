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
_EVENTS = re.compile(r"ranks/([0-9]{5})\.jsonl")
_LOG = re.compile(r"ranks/([0-9]{5})\.log")
_NODE = re.compile(r"node([0-9]{1,4})\.log")


class At(NamedTuple):
    """How far a file is known, and the check (CRC-32) of the last bytes of that."""

    name: str
    offset: int
    checked: int = 0
    """How many bytes before `offset` the check is of."""
    crc: int = 0


def of_run(name: str) -> bool:
    """Whether a file of that name, relative to its run folder, is mirrored."""
    return name in (SUPERVISOR, DEVICES) or any(p.fullmatch(name) for p in (_EVENTS, _LOG, _NODE))


def is_events(name: str) -> bool:
    """Whether it only ever grows; logs are cut when they have grown too large."""
    return name == DEVICES or _EVENTS.fullmatch(name) is not None


def here(name: str, host: str, ranks: Collection[int], node: int) -> str | None:
    """Where the file that a host with these ranks calls `name` lies in the run folder here; None
    where it has no business sending it. `host` is the name that the person gave it."""
    if name == SUPERVISOR:
        return f"hosts/{host}.log"
    if name == DEVICES:
        return f"hosts/{host}.{DEVICES}"
    of_rank = _EVENTS.fullmatch(name) or _LOG.fullmatch(name)
    if of_rank is not None:
        return name if int(of_rank[1]) in ranks else None
    of_node = _NODE.fullmatch(name)
    return name if of_node is not None and int(of_node[1]) == node else None
