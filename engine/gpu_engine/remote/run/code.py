"""The code of a run on hosts, sent to each host that has not got it.

It goes over the channel that each host's agent is asked by, so that every host that can be asked
can be sent to, by ssh or another command, and needs no program for it. A file of which the host has
the content already, in code that was sent before, is not sent again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from gpu_engine.code.snapshot import Snapshot
from gpu_engine.plan.records import Sending
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.channel import Channel

_BUILD = 300.0
"""Seconds in which a host compares, or writes, all files."""


def bring(way: Channel, snapshot: Snapshot) -> str:
    """The folder on the host that holds the code, sent now where it was missing. Raises
    Unreachable, Refused."""
    there = _compared(way, snapshot, use=True)
    if there.there:
        return there.path
    key = secrets.token_hex(16)
    way.send_all(key, "list", _pieces([snapshot.listed]))
    way.send_all(key, "contents", _pieces(
        data for n, data in enumerate(snapshot.contents) if protocol.is_set(there.bits, n)))
    return way.ask(protocol.BuildCode(key, snapshot.name, there.bits), protocol.CodeState,
                   _BUILD).path


def preview(way: Channel, snapshot: Snapshot) -> Sending:
    """What `bring` would send, and where to. Raises Unreachable, Refused."""
    there = _compared(way, snapshot)
    sizes = [e.size for n, e in enumerate(snapshot.entries) if protocol.is_set(there.bits, n)]
    return Sending(way.host.name, there.path, there.there, len(sizes), sum(sizes))


def _compared(way: Channel, snapshot: Snapshot, *, use: bool = False) -> protocol.CodeState:
    hashes = b"".join(bytes.fromhex(e.sha256)[:protocol.HASH] for e in snapshot.entries)
    return way.ask(protocol.CompareCode(snapshot.name, hashes, use), protocol.CodeState, _BUILD)


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts one behind the other, in pieces that fit a message."""
    rest = bytearray()
    for part in parts:
        rest += part
        while len(rest) >= protocol.PIECE:
            yield bytes(rest[:protocol.PIECE])
            del rest[:protocol.PIECE]
    if rest:
        yield bytes(rest)
