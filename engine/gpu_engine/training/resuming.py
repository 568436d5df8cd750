"""Finds the checkpoint to go on from. Rank 0 chooses it for all ranks.

Ranks on one machine map the same file and share its pages in memory. A rank on another machine may
have a folder of its own, in which the checkpoint is missing or differs. It compares the hash with
rank 0's, and receives rank 0's file if they differ.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.runs import checkpoints
from gpu_engine.runs.checkpoints import STATE, Damaged
from gpu_engine.training import checkpoint
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.recorder import Progress, Recorder


@dataclass
class Found:
    """A checkpoint to go on from."""

    path: Path
    """Its folder, on rank 0."""
    state: dict[str, Any]
    """Its tensors are mapped from a file: copy what must outlive the file."""
    own: dict[str, Any] | None
    """This rank's random generators; None if the number of ranks was another one."""


def find(folder: Path, group: Group, rec: Recorder, requested: str | None = None,
         attempt: int = 1) -> Found | None:
    """The checkpoint to go on from: the one that a person has `requested` for this `attempt`, or
    else the newest in rank 0's folder that passes `verify`. None if there are no checkpoints.

    All ranks call it together. Raises UserError if there are checkpoints and none can be loaded,
    or if the requested one can't be loaded.
    """
    chosen: dict[str, Any] = {}
    if group.rank == 0:
        try:
            chosen = _choose(folder, rec, requested, attempt)
        except (UserError, Damaged) as err:
            chosen = {"problem": str(err)}
    generators = chosen.pop("ranks", [])
    chosen = json.loads(group.broadcast(json.dumps(chosen)))
    if "problem" in chosen:
        raise UserError(("rank 0: " if group.rank else "") + chosen["problem"])
    if not chosen:
        return None
    path = folder / chosen["name"]
    file = path / STATE
    lacks = group.rank > 0 and not _same_file(file, chosen, rec)
    group.barrier()
    with ExitStack() as stack:
        # It has no name: it goes when the last that maps it has ended.
        received = stack.enter_context(
            tempfile.TemporaryFile(dir=folder.parent)) if lacks else None
        if group.all_reduce_max([float(lacks)])[0]:
            _send(file, chosen, group, rec, received)
        if received is not None:
            file = Path(f"/proc/self/fd/{received.fileno()}")
        try:
            state = checkpoint.load(file)
        except Damaged as err:
            raise UserError(str(err)) from err
    generators = json.loads(group.broadcast(json.dumps(generators)))
    own = None
    if len(generators) == group.size:
        own = torch.load(io.BytesIO(bytes.fromhex(generators[group.rank])), map_location="cpu",
                         weights_only=True)
    return Found(path, state, own)


def take_copies(optimizer: Optimizer) -> None:
    """Give a freshly loaded optimizer its own memory. `load_state_dict` keeps CPU tensors as they
    are, which are mapped from the checkpoint's file."""
    for held in [*optimizer.state.values(), *optimizer.param_groups]:
        for key, value in held.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                held[key] = value.clone()


def _choose(folder: Path, rec: Recorder, requested: str | None, attempt: int) -> dict[str, Any]:
    """On rank 0: a description of the chosen checkpoint, for all ranks; {} if there is none. Raises
    UserError, Damaged."""
    files.remove_unfinished(folder)
    with _progress(rec, "verifying a checkpoint") as progress:
        if requested is None:
            path = checkpoint.newest(folder, rec.warn, progress)
        else:
            path = folder / requested
            try:
                checkpoint.verify(path, progress)
            except Damaged as err:
                raise UserError(f"checkpoint {err}; choose another to go on from") from None
    if path is None:
        if checkpoints.listed(folder):
            raise UserError(f"none of the checkpoints in {folder} can be loaded; remove the folder "
                            "to start from the beginning")
        return {}
    if requested is not None:
        # If later ones stayed, a restart would go on from them, and pruning would delete new
        # checkpoints before them.
        aside = f"before-attempt-{attempt}"
        try:
            moved = checkpoints.set_aside(folder, requested, aside)
        except OSError as err:
            raise UserError(f"{err.filename}: {err.strerror}; the checkpoints after {requested} "
                            "can't be set aside") from None
        if moved:
            rec.warn(f"going on from {requested} as asked; moved to {folder / aside}: "
                     f"{', '.join(moved)}")
    return {"name": path.name, "identity": _identity(path / STATE),
            "ranks": [data.hex() for data in checkpoint.load_ranks(path)],
            **checkpoints.read_manifest(path)["files"][STATE]}


def _same_file(file: Path, chosen: dict[str, Any], rec: Recorder) -> bool:
    """Whether this rank's own file is the one that rank 0 chose or has the same content."""
    try:
        if _identity(file) == chosen["identity"]:
            return True
        with _progress(rec, "verifying a checkpoint") as progress:
            if checkpoint.digest(file, progress) == (chosen["size"], chosen["sha256"]):
                return True
    except OSError:
        return False
    rec.warn(f"{chosen['name']} on this machine differs from rank 0's; going on from rank 0's")
    return False


def _identity(file: Path) -> str:
    """A text that identifies a file on this machine until it changes. Raises OSError."""
    stat = file.stat()
    return f"{procs.boot_id()}:{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"


def _send(file: Path, chosen: dict[str, Any], group: Group, rec: Recorder, out: Any) -> None:
    """Send rank 0's file to the ranks that lack it. All ranks take part. `out`: where this rank
    puts it; None if it has it. Raises UserError if it did not come."""
    hashed, problem = hashlib.sha256(), ""
    source = checkpoints.opened(file) if group.rank == 0 else None
    with _progress(rec, "receiving a checkpoint" if group.rank else "sending a checkpoint",
                   chosen["size"]) as progress:
        for piece in group.broadcast_pieces(source, chosen["size"]):
            progress.done += len(piece)
            if out is not None and not problem:
                hashed.update(piece)
                try:
                    out.write(piece)
                    out.flush()
                except OSError as err:  # go on receiving: the other ranks need this one
                    problem = f"no room here for the checkpoint from rank 0: {err.strerror}"
    if out is not None and not problem and hashed.hexdigest() != chosen["sha256"]:
        problem = f"{chosen['name']} was changed on its way from rank 0: the hashes differ"
    if problem:
        raise UserError(problem)


@contextmanager
def _progress(rec: Recorder, doing: str, total: int | None = None) -> Iterator[Progress]:
    progress = Progress(total=total)
    detail: Callable[[], str] = lambda: (  # noqa: E731
        f"{doing}: {units.size(progress.done)} of {units.size(progress.total)}")
    rec.detail = detail
    try:
        yield progress
    finally:
        rec.detail = ""
