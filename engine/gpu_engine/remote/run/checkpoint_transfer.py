"""Bringing a checkpoint from one host to another, on which rank 0 is from now on.

It goes through this machine in pieces and is kept nowhere on the way; if the former host can't be
reached, a copy that is here does as well. The host that gets it compares every file with the hash
in the manifest before a rank begins with it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import file_inside, read_inside
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.channel import Channel, Refused, open_channel
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.run import parts, queries
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import checkpoints
from gpu_engine.runs.folder import Run

_BUILD = 600.0
"""Seconds in which a host looks for the files on its own disk."""


def transfer(run: Run, source: Part, target: Host, name: str, say: queries.Say) -> str:
    """Bring checkpoint `name` from `source` to `target`. Returns the key by which `Start` or
    `Resume` finds it there. Raises UserError."""
    with open_channel(parts.host_of(run.path, source)) as out, open_channel(target) as into:
        sizes = queries.listed(out, source, run)

        def pieces(short: str) -> Iterator[bytes]:
            whole = f"{name}/{short}"
            if whole not in sizes:
                raise UserError(f"{source.host}: {name} has no {short[:40]!r}")
            say(f"{whole} from {source.host} to {target.name}, {sizes[whole]:,} bytes")
            return queries.pieces(out, source, whole, sizes[whole])

        return _bring(run, name, into, source.path, pieces)


def carry_copy(run: Run, target: Host, name: str, say: queries.Say) -> str:
    """`carry`, of the copy that is here."""
    def pieces(short: str) -> Iterator[bytes]:
        say(f"{name}/{short} from here to {target.name}")
        return _read(run.checkpoints / name / short)

    with open_channel(target) as into:
        return _bring(run, name, into, None, pieces)


def newest_here(run: Run) -> str | None:
    """The newest checkpoint that was brought here whole, as by an export; None: there is none."""
    for folder in reversed(checkpoints.listed(run.checkpoints)):
        with contextlib.suppress(checkpoints.Damaged, OSError):
            entries = checkpoints.read_manifest(folder)["files"]
            if all((folder / n).stat().st_size == e["size"] for n, e in entries.items()):
                return folder.name
    return None


def _bring(run: Run, name: str, into: Channel, path: str | None,
           pieces: Callable[[str], Iterator[bytes]]) -> str:
    key, folder = secrets.token_hex(16), run.checkpoints / name
    try:
        manifest = checkpoints.read_manifest(folder)
        content = read_inside(*checkpoints.inside(folder, checkpoints.MANIFEST))
    except (checkpoints.Damaged, OSError) as err:
        raise UserError(f"{folder}: {err}") from None
    answer = into.ask(protocol.OfferCheckpoint(key, name, path, content), protocol.LackingFiles,
                      _BUILD)
    if not set(answer.names) <= set(manifest["files"]):
        raise Refused(into.host.name, "it does not say which files of the checkpoint it lacks")
    for short in answer.names:
        into.send_all(protocol.SendCheckpoint, key, f"{name}/{short}", pieces(short))
    return key


def _read(path: Path) -> Iterator[bytes]:
    with telling(str(path)), file_inside(*checkpoints.inside(path.parent, path.name)) as file:
        while data := file.read(protocol.PIECE):
            yield data
