"""Sending many pieces to a host that answers each with `Done`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gpu_engine.remote.reach.channel import ASK, Channel, Stream, Unreachable
from gpu_engine.remote.reach.protocol import Request

_AHEAD = 8
"""Pieces on their way at a time: a host far away is not waited for after each."""


def send(way: Channel, requests: Iterable[Request], what: str) -> None:
    """Send all of them, in order. `what` names them in errors: "code". Raises Unreachable, and
    Refused with what the host says."""
    under_way: deque[Stream] = deque()
    for request in requests:
        if len(under_way) == _AHEAD:
            _taken(way, under_way.popleft(), what)
        under_way.append(way.stream(request))
    while under_way:
        _taken(way, under_way.popleft(), what)


def _taken(way: Channel, stream: Stream, what: str) -> None:
    try:
        if stream.next(ASK) is None:
            raise Unreachable(way.host.name, f"it took none of the {what} for {ASK:.0f} s")
    finally:
        stream.close()
