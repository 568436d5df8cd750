"""Bringing a checkpoint from one host to another, on which rank 0 is from now on.

It goes through this machine in pieces and is kept nowhere on the way. The host that gets it
compares every file with the hash in the manifest before a rank begins with it.
"""

from __future__ import annotations

import secrets
from collections import deque

from gpu_engine.common.errors import UserError
from gpu_engine.hosts import checkpoint_messages as messages
from gpu_engine.hosts.channel import ASK, Channel, Refused, Stream, Unreachable, open_channel
from gpu_engine.hosts.records import Host
from gpu_engine.runs import checkpoints
from gpu_engine.runs.folder import Run
from gpu_engine.spanning import asking
from gpu_engine.spanning.parts import Part

_AHEAD = 8
"""Pieces on their way at a time: a host far away is not waited for after each."""
_BUILD = 600.0
"""Seconds in which a host looks for the files on its own disk."""


def carry(run: Run, source: Part, target: Host, name: str, say: asking.Say) -> str:
    """Bring checkpoint `name` from `source` to `target`. Returns the key by which `Start` or
    `Resume` finds it there. Raises UserError."""
    key = secrets.token_hex(16)
    with open_channel(source.host) as out, open_channel(target) as into:
        sizes = asking.listed(out, source, run)
        folder = run.checkpoints / name
        try:
            manifest = checkpoints.read_manifest(folder)
            content = (folder / checkpoints.MANIFEST).read_bytes()
        except (checkpoints.Damaged, OSError) as err:
            raise UserError(f"{source.host.name}: {err}") from None
        answer = into.ask(messages.OfferCheckpoint(key, name, source.path or "", content), _BUILD)
        if not isinstance(answer, messages.LackingFiles):
            raise Refused(target.name, "it does not say which files of the checkpoint it lacks")
        for short in answer.names:
            if short not in manifest["files"] or f"{name}/{short}" not in sizes:
                raise UserError(f"{source.host.name}: {name} has no {short[:40]!r}")
            say(f"{name}/{short} from {source.host.name} to {target.name}, "
                f"{sizes[f'{name}/{short}']:,} bytes")
            _send(out, source, into, key, f"{name}/{short}", sizes[f"{name}/{short}"])
    return key


def _send(out: Channel, source: Part, into: Channel, key: str, name: str, size: int) -> None:
    under_way: deque[Stream] = deque()
    offset = 0
    for piece in asking.pieces(out, source, name, size):
        if len(under_way) == _AHEAD:
            _taken(into, under_way.popleft())
        under_way.append(into.stream(messages.SendCheckpoint.of(key, name, offset, piece)))
        offset += len(piece)
    while under_way:
        _taken(into, under_way.popleft())


def _taken(way: Channel, stream: Stream) -> None:
    try:
        if stream.next(ASK) is None:
            raise Unreachable(way.host.name, f"it took none of the checkpoint for {ASK:.0f} s")
    finally:
        stream.close()
