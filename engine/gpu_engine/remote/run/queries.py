"""What a command asks of a run's hosts by itself, beside the process that holds it together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import files as names
from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.reach.channel import Channel, Refused, at_once, open_channel
from gpu_engine.remote.reach.protocol import BadMessage
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import checkpoints
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run

MOST = 1 << 40
"""Bytes of one file of a checkpoint."""
_SILENT = 60.0
_ENDING = 15.0

Say = Callable[[str], None]


def stacks(run: Run, ranks: list[int]) -> dict[int, str]:
    """Have the ranks print where they are, into their logs, which come here by themselves. Returns
    why a rank could not be asked, where its host can't be."""
    found = [p for p in parts.read(run.path) if p.run is not None and set(ranks) & set(p.ranks)]

    def ask(part: Part) -> None:
        assert part.run is not None
        with open_channel(parts.host_of(run.path, part)) as way:
            way.ask(protocol.Stacks(part.run, tuple(r for r in part.ranks if r in ranks)))

    answers = at_once(ask, found)
    return {rank: str(answer) for part, answer in zip(found, answers, strict=True)
            if isinstance(answer, UserError) for rank in part.ranks if rank in ranks}


def to_stop_text(run: Run, hosts: Sequence[str]) -> str:
    """What a stopped run says of hosts that could not be asked to stop."""
    return (f"{', '.join(hosts)} can't be reached: what runs there goes on until "
            f"gpu-engine stop {run.id} reaches it")


def stop_left(run: Run, *, now: bool = False) -> bool:
    """Ask the hosts that could not be reached when the run was stopped. Returns whether there were
    any. Raises UserError where one can't be reached now either."""
    left = [p for p in parts.read(run.path) if p.to_stop and p.run is not None]
    if not left:
        return False

    def ask(part: Part) -> None:
        assert part.run is not None
        with open_channel(parts.host_of(run.path, part)) as way, \
                contextlib.suppress(Refused):  # it has no such run any more
            way.ask(protocol.Stop(part.run, now))
        parts.write(run.path, replace(part, to_stop=False, problem=None, since=None))

    lock = lock_of(run.path)
    try:
        # Another attempt, which would have the lock, must not be what is stopped. The supervisor of
        # this one holds it for a moment after it has written that the run is stopped.
        end = time.monotonic() + _ENDING
        while not names.take_lock(lock):
            if run.state().live or time.monotonic() > end:
                return False
            time.sleep(0.05)
        failed = [answer for answer in at_once(ask, left) if isinstance(answer, UserError)]
        state = run.state()
        if state.state == "stopped":
            still = [p.host for p in parts.read(run.path) if p.to_stop]
            run.write_state(replace(state, reason=to_stop_text(run, still) if still else None))
    finally:
        os.close(lock)
    if failed:
        raise UserError("; ".join(map(str, failed)))
    return True


def fetch(run: Run, which: str, best: str | None, say: Say) -> str:
    """Bring the checkpoint that `which` means here, from the host of rank 0, each file verified by
    the hash that its manifest has. Returns its name. Raises UserError."""
    with _first(run) as (way, first, sizes):
        name = _name(run, first, sizes, which, best)
        _whole(way, first, run, name, sizes, say)
    return name


def choose(run: Run, which: str, best: str | None) -> str:
    """The name of the checkpoint on the host of rank 0 that `which` means. Raises UserError."""
    with _first(run) as (_, first, sizes):
        return _name(run, first, sizes, which, best, among=_folders(sizes))


@contextlib.contextmanager
def _first(run: Run) -> Iterator[tuple[Channel, Part, dict[str, int]]]:
    """The way to the host of rank 0, its part, and what is `listed` there. Raises UserError."""
    first = next((p for p in parts.read(run.path) if p.node == 0), None)
    if first is None or first.run is None:
        raise UserError(f"run {run.id} has begun on no host, so there is no checkpoint")
    with open_channel(parts.host_of(run.path, first)) as way:
        yield way, first, listed(way, first, run)


def listed(way: Channel, part: Part, run: Run) -> dict[str, int]:
    """The files of all checkpoints there and their bytes; their manifests, by which the best is
    told, are here afterwards."""
    assert part.run is not None
    listed = way.ask(protocol.ListCheckpoints(part.run), protocol.Checkpoints)
    sizes = {name: size for name, size in listed.files.items() if files.of_checkpoint(name)}
    run.checkpoints.mkdir(mode=0o700, exist_ok=True)
    for gone in set(checkpoints.listed(run.checkpoints)) - {
            run.checkpoints / folder for folder in _folders(sizes)}:
        _forget(gone)
    for folder in _folders(sizes):
        _manifest(way, part, run, folder, sizes)
    return sizes


def _forget(gone: Path) -> None:
    """Remove the manifest of a checkpoint that its host no longer names. A folder that holds more
    stays: no state is removed because a host says so."""
    with contextlib.suppress(OSError):
        if os.listdir(gone) == [checkpoints.MANIFEST]:  # noqa: PTH208
            (gone / checkpoints.MANIFEST).unlink()
            gone.rmdir()


def _folders(sizes: dict[str, int]) -> list[str]:
    return sorted({name.partition("/")[0] for name in sizes
                   if name.endswith("/" + checkpoints.MANIFEST)})


def _name(run: Run, first: Part, sizes: dict[str, int], which: str, best: str | None,
          among: list[str] | None = None) -> str:
    there = _folders(sizes)
    if not there:
        raise UserError(f"run {run.id} has no checkpoint on {first.host} yet")
    return checkpoints.choose(run.checkpoints, which, best, among) or there[-1]


def _manifest(way: Channel, part: Part, run: Run, folder: str, sizes: dict[str, int]) -> None:
    name = f"{folder}/{checkpoints.MANIFEST}"
    target = run.checkpoints / name
    if target.exists():
        return
    data = b"".join(pieces(way, part, name, min(sizes[name], 1 << 20)))
    target.parent.mkdir(mode=0o700, exist_ok=True)
    names.write_inside(run.path, f"checkpoints/{name}", data.decode("utf-8", "replace"))


def _whole(way: Channel, part: Part, run: Run, folder: str, sizes: dict[str, int],
           say: Say) -> None:
    try:
        manifest = checkpoints.read_manifest(run.checkpoints / folder)
    except checkpoints.Damaged as err:
        raise UserError(f"{part.host}: {err}") from None
    for short, entry in manifest["files"].items():
        name = f"{folder}/{short}"
        target = run.checkpoints / name
        one = files.of_checkpoint(name)
        if one and target.exists() and _hash(target) == entry["sha256"]:
            continue
        if not one or name not in sizes:
            raise UserError(f"{part.host}: {folder} has no {short[:40]!r}")
        say(f"{name} from {part.host}, {sizes[name]:,} bytes")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        room = shutil.disk_usage(run.path).free
        if sizes[name] > room:
            raise UserError(f"no space left in {run.path}: {name} has {sizes[name]:,} bytes, "
                            f"{room:,} are free")
        digest = hashlib.sha256()
        try:
            fd = names.open_inside(*checkpoints.inside(temporary.parent, temporary.name),
                                   os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "wb") as out:
                for data in pieces(way, part, name, sizes[name]):
                    out.write(data)
                    digest.update(data)
            if digest.hexdigest() != entry["sha256"]:
                raise UserError(f"{name} is not what its manifest on {part.host} says: it is "
                                "damaged there, or was changed on its way")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def pieces(way: Channel, part: Part, name: str, size: int) -> Iterator[bytes]:
    """The content of a file of a checkpoint, `size` bytes at most. Raises Unreachable, Refused."""
    assert part.run is not None
    at = 0
    with contextlib.closing(way.stream(protocol.Read(part.run, name))) as stream:
        while not isinstance(got := stream.next(_SILENT), protocol.Done):
            if not isinstance(got, protocol.Piece) or got.offset != at:
                raise Refused(part.host, f"{name} does not come as it should")
            try:
                data = got.content()
            except BadMessage as err:
                raise Refused(part.host, f"{name} does not come as it should: {err}") from None
            at += len(data)
            if at > size or at > MOST:
                raise Refused(part.host, f"{name} is longer than the {size:,} bytes it was said "
                                         "to have")
            yield data


def _hash(path: Path) -> str:
    with names.file_inside(*checkpoints.inside(path.parent, path.name)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


