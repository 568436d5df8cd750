"""What a command asks of a run's hosts by itself, beside the process that holds it together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import files as names
from gpu_engine.common.errors import UserError, telling
from gpu_engine.remote.reach import call, files, protocol
from gpu_engine.remote.reach.call import Refused, at_once
from gpu_engine.remote.reach.protocol import BadMessage
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import checkpoints
from gpu_engine.runs.create import lock_of
from gpu_engine.runs.folder import Run

_ENDING = 15.0
_LARGEST_MANIFEST = 1 << 20

Say = Callable[[str], None]


def stacks(run: Run, ranks: list[int]) -> dict[int, str]:
    """Have the ranks print where they are, into their logs, which come here by themselves. Returns
    why a rank could not be asked, where its host can't be."""
    found = [p for p in parts.read(run.path) if p.run is not None and set(ranks) & set(p.ranks)]

    def ask(part: Part) -> None:
        assert part.run is not None
        call.ask(parts.host_of(run.path, part),
                 protocol.Stacks(part.run, tuple(r for r in part.ranks if r in ranks)))

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
        with contextlib.suppress(Refused):  # it has no such run any more
            call.ask(parts.host_of(run.path, part), protocol.Stop(part.run, now))
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


def choose(run: Run, which: str, best: str | None) -> str:
    """The name of the checkpoint on the host of rank 0 that `which` means. Raises UserError."""
    host, part = _first(run)
    return _named(host, call.ask(host, protocol.Fetch(part, which, best), protocol.Chosen))


def fetch(run: Run, which: str, best: str | None, say: Say) -> str:
    """Bring the checkpoint that `which` means here, from the host of rank 0, each file verified by
    the hash that its manifest has. Returns its name. Raises UserError."""
    host, part = _first(run)
    with call.Call(host, protocol.Fetch(part, which, best, content=True)) as answers:
        name = _named(host, answers.expect(protocol.Chosen))
        final, temporary = run.checkpoints / name, run.checkpoints / f".{name}.{os.getpid()}.tmp"
        say(f"{name} from {host.name}")
        run.checkpoints.mkdir(mode=0o700, exist_ok=True)
        if run.checkpoints.is_symlink():
            raise UserError(f"{run.checkpoints}: it is a link")
        temporary.mkdir(mode=0o700)
        try:
            _receive(answers, run, temporary)
            if final.exists():  # an earlier one, of which a file may be missing
                final.rename(temporary / "before")
            temporary.rename(final)
            shutil.rmtree(final / "before", ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return name


def _receive(answers: call.Call, run: Run, folder: Path) -> None:
    """The files of a checkpoint, into `folder`: the manifest first, and no more than it says.
    Raises UserError."""
    host, manifest = answers.host.name, None
    while not isinstance(piece := answers.next(), protocol.Done):
        if not isinstance(piece, protocol.Piece) or not files.of_checkpoint(piece.name):
            raise Refused(host, "its checkpoint does not come as it should")
        short = piece.name.partition("/")[2]
        if short != checkpoints.MANIFEST and manifest is None:
            manifest = _manifest(host, folder)
            total = sum(max(entry["size"], 0) for entry in manifest.values())
            room = shutil.disk_usage(run.path).free
            if total > room:
                raise UserError(f"no space left in {run.path}: the checkpoint has {total:,} bytes, "
                                f"{room:,} are free")
        most = _LARGEST_MANIFEST if manifest is None else \
            manifest[short]["size"] if short in manifest else 0
        try:
            data = piece.content()
        except BadMessage as err:
            raise Refused(host, f"{piece.name}: {err}") from None
        with telling(f"{folder / short}: can't be written"), os.fdopen(names.open_inside(
                *checkpoints.inside(folder, short), os.O_WRONLY | os.O_APPEND | os.O_CREAT),
                "ab") as out:
            if out.tell() != piece.offset or out.tell() + len(data) > most:
                raise Refused(host, f"{piece.name} is not as long as its manifest says")
            out.write(data)
    for short, entry in _manifest(host, folder).items():
        try:
            with (folder / short).open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
        except OSError:
            same = False
        if not same:
            raise UserError(f"{host}: {short} is not what its manifest says: it is damaged there, "
                            "or was changed on its way")


def _manifest(host: str, folder: Path) -> dict[str, checkpoints.FileEntry]:
    """The files that the manifest in `folder` has. Raises UserError."""
    try:
        entries = checkpoints.read_manifest(folder)["files"]
    except checkpoints.Damaged as err:
        raise UserError(f"{host}: {err}") from None
    for short in entries:
        if not files.of_checkpoint(f"{checkpoints.name_of(0)}/{short}"):
            raise UserError(f"{host}: {short[:40]!r} is no file of a checkpoint")
    return entries


def _first(run: Run) -> tuple[Host, str]:
    """The host of rank 0, and the run's id there. Raises UserError."""
    first = next((p for p in parts.read(run.path) if p.node == 0), None)
    if first is None or first.run is None:
        raise UserError(f"run {run.id} has begun on no host, so there is no checkpoint")
    return parts.host_of(run.path, first), first.run


def _named(host: Host, chosen: protocol.Chosen) -> str:
    if not files.of_checkpoint(f"{chosen.name}/{checkpoints.MANIFEST}"):
        raise Refused(host.name, f"{chosen.name[:40]!r} is no name of a checkpoint")
    return chosen.name
