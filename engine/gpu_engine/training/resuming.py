"""Which checkpoint all ranks go on from: rank 0's, known by its hash.

Ranks of one machine read the same file, as pages that they share. A rank on another machine, with
a folder of its own, may hold nothing, or something else by the same name: it compares hashes, and
has rank 0's sent where they differ.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.optim import Optimizer

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.runs import checkpoints
from gpu_engine.training import checkpoint, checkpoint_files
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.recorder import Progress, Recorder


@dataclass(frozen=True)
class Told:
    """The checkpoint that a person chose."""

    name: str
    attempt: int
    """The one that goes on from it."""


class _NotAsTold(Exception):
    """Why the chosen one can't be gone on from."""


@dataclass
class Found:
    """A checkpoint to go on from."""

    path: Path
    """Where it lies on rank 0."""
    state: dict[str, Any]
    """Its tensors are pages of a file: copy what is to stay."""
    own: dict[str, Any] | None
    """This rank's random generators; None where there were other ranks."""


def find(folder: Path, group: Group, rec: Recorder, told: Told | None = None) -> Found | None:
    """The newest checkpoint that verifies, as rank 0 finds it; None to start afresh. Or the one
    that a person `told`.

    All ranks call it together. Raises UserError where there are some and none can be loaded, or
    the one that was told can't be.
    """
    chosen, ranks = _choose(folder, rec, told) if group.rank == 0 else ({}, [])
    chosen = json.loads(group.broadcast_patiently(json.dumps(chosen)))
    if "problem" in chosen:
        raise UserError(("rank 0: " if group.rank else "") + chosen["problem"])
    if group.rank and _identity(folder) != chosen["folder"]:
        _notice_newer(folder, chosen["name"], rec)
    if not chosen["name"]:
        return None
    path = folder / chosen["name"]
    file = path / checkpoint.STATE
    if group.rank:
        file = _own_file(file, chosen, rec)
    group.meet()
    received = None
    if group.all_reduce_max([float(file is None)])[0]:
        received = _send(path / checkpoint.STATE, chosen, group, rec, wanted=file is None)
    own = checkpoint.from_bytes(group.broadcast_bytes(checkpoint.to_bytes(ranks)))
    try:
        if file is None and received is not None:
            file = Path(f"/proc/self/fd/{received.fileno()}")
        state = checkpoint.open_state(file or path / checkpoint.STATE)
    except checkpoint.Damaged as err:
        raise UserError(str(err)) from err
    finally:
        if received is not None:
            received.close()
    mine = checkpoint.from_bytes(own[group.rank]) if len(own) == group.size else None
    return Found(path, state, mine)


def take_copies(optimizer: Optimizer) -> None:
    """Give an optimizer that was just loaded memory of its own: on the CPU it took the very
    tensors that it was given."""
    for held in [*optimizer.state.values(), *optimizer.param_groups]:
        for key, value in held.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                held[key] = value.clone()


def _choose(folder: Path, rec: Recorder, told: Told | None,
            ) -> tuple[dict[str, Any], list[bytes]]:
    """Rank 0's choice, for the others, and what is each rank's own."""
    files.remove_unfinished(folder)
    progress = Progress()
    rec.detail = _telling("verifying a checkpoint", progress)
    try:
        if told is None:
            path = checkpoint.newest(folder, rec.warn, progress)
        else:
            path = _as_told(folder, told, rec, progress)
        if path is None:
            if checkpoint.listed(folder):
                return {"problem": f"none of the checkpoints in {folder} can be loaded; remove "
                                   "the folder to start afresh"}, []
            return {"name": "", "folder": _identity(folder)}, []
        entry = checkpoint.read_manifest(path)["files"][checkpoint.STATE]
        return {"name": path.name, "folder": _identity(folder), "size": entry["size"],
                "sha256": entry["sha256"], "identity": _identity(path / checkpoint.STATE),
                }, checkpoint.load_ranks(path)
    except _NotAsTold as err:
        return {"problem": str(err)}, []
    finally:
        rec.detail = ""


def _as_told(folder: Path, told: Told, rec: Recorder, progress: Progress) -> Path:
    """The checkpoint that a person named, once it has been verified and those behind it are out of
    the way: kept among the others they would be gone on from after the next failure, and what is
    trained from here on would be the first to be pruned."""
    path = folder / told.name
    try:
        checkpoint.verify(path, progress)
    except checkpoint.Damaged as err:
        raise _NotAsTold(f"checkpoint {err}; choose another to go on from") from None
    aside = f"before-attempt-{told.attempt}"
    try:
        moved = checkpoints.set_aside(folder, told.name, aside)
    except OSError as err:
        raise _NotAsTold(f"{err.filename}: {err.strerror}; the checkpoints behind {told.name} "
                         "can't be set aside") from None
    if moved:
        rec.warn(f"going on from {told.name} as asked; moved to {folder / aside}: "
                 f"{', '.join(moved)}")
    return path


def _own_file(file: Path, chosen: dict[str, Any], rec: Recorder) -> Path | None:
    """This rank's file where it is the one that rank 0 chose, by its identity or its content."""
    here = _identity(file)
    if here is None:
        return None
    if here == chosen["identity"]:
        return file
    progress = Progress()
    rec.detail = _telling("verifying a checkpoint", progress)
    try:
        if checkpoint_files.digest(file, progress) == (chosen["size"], chosen["sha256"]):
            return file
    except OSError:
        return None
    finally:
        rec.detail = ""
    rec.warn(f"{chosen['name']} on this machine is not what rank 0 has by that name; going on from "
             "rank 0's")
    return None


def _notice_newer(folder: Path, name: str, rec: Recorder) -> None:
    """Say so where this machine's own folder holds a later checkpoint than the one taken."""
    there = checkpoint.listed(folder)
    if there and there[-1].name > name:
        rec.warn(f"this machine has {there[-1].name}, which rank 0 has not: "
                 + (f"all go on from rank 0's {name}" if name else "rank 0 has no checkpoint, and "
                    "all start afresh"))


def _send(file: Path, chosen: dict[str, Any], group: Group, rec: Recorder, *,
          wanted: bool) -> BinaryIO | None:
    """Rank 0's file to those that lack it: an unnamed file in the run's folder. All ranks take
    part; None where it is not wanted."""
    progress = Progress(total=chosen["size"])
    rec.detail = _telling("sending a checkpoint" if group.rank == 0 else "receiving a checkpoint",
                          progress)
    hashed, problem = hashlib.sha256(), ""
    out = tempfile.TemporaryFile(dir=file.parents[2]) if wanted else None  # noqa: SIM115
    try:
        source = file.open("rb", buffering=0) if group.rank == 0 else None
        for piece in group.broadcast_pieces(source, chosen["size"]):
            progress.done += len(piece)
            if out is not None and not problem:
                try:
                    out.write(piece)
                except OSError as err:  # the others still count on this rank's part
                    problem = f"the checkpoint from rank 0 has no room here: {err.strerror}"
                hashed.update(piece)
        if out is not None:
            out.flush()
    finally:
        rec.detail = ""
    if out is not None and not problem and hashed.hexdigest() != chosen["sha256"]:
        problem = f"{chosen['name']} arrived from rank 0 as something else"
    if problem:
        raise UserError(problem)
    return out


def _identity(path: Path) -> str | None:
    """What tells a file or folder from every other, on this machine and until it changes; None
    where it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    changed = "" if path.is_dir() else f":{stat.st_size}:{stat.st_mtime_ns}"
    return f"{procs.boot_id()}:{stat.st_dev}:{stat.st_ino}{changed}"


def _telling(doing: str, progress: Progress) -> Callable[[], str]:
    return lambda: f"{doing}: {units.size(progress.done)} of {units.size(progress.total)}"
