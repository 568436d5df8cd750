"""Finds the checkpoint to go on from. Rank 0 chooses it for all ranks.

Ranks on one machine map the same file and share its pages in memory. A rank on another machine may
have a folder of its own, in which the checkpoint is missing or differs. It compares the hash with
rank 0's, and receives rank 0's file if they differ.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.optim import Optimizer

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.runs import checkpoints
from gpu_engine.training import checkpoint
from gpu_engine.training.strategies import COMPILED
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
    chosen, ranks = _choose(folder, rec, requested, attempt) if group.rank == 0 else ({}, [])
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
    group.barrier()
    received = None
    if group.all_reduce_max([float(file is None)])[0]:
        received = _send(path / checkpoint.STATE, chosen, group, rec, wanted=file is None)
    # As JSON: before torch 2.5, `torch.load` took no bytes.
    own = json.loads(group.broadcast_bytes(json.dumps([data.hex() for data in ranks]).encode()))
    try:
        if file is None and received is not None:
            file = Path(f"/proc/self/fd/{received.fileno()}")
        state = checkpoint.open_state(file or path / checkpoint.STATE)
    except checkpoint.Damaged as err:
        raise UserError(str(err)) from err
    finally:
        if received is not None:
            received.close()
    mine = bytes.fromhex(own[group.rank]) if len(own) == group.size else None
    return Found(path, state, None if mine is None else checkpoint.from_bytes(mine))


def misfit(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> str:
    """How a checkpoint's weights differ from a model's in names and shapes, with the first of each
    kind, or else its optimizer's groups from those of `optimizer`; "" where they do not. torch
    names every tensor, which for a large model are thousands of lines."""
    here, there = ({name.replace(COMPILED, ""): getattr(value, "shape", None)
                    for name, value in weights.items()}
                   for weights in (model.state_dict(), state["model"]))
    other = [n for n in there if n in here and there[n] != here[n]]
    kinds = (
        ("another shape", other, lambda name: f" is {tuple(there[name] or ())} in the checkpoint "
                                              f"and {tuple(here[name] or ())} in the model"),
        ("no place in the checkpoint", [n for n in here if n not in there], lambda name: ""),
        ("no place in the model", [n for n in there if n not in here], lambda name: ""))
    found = [f"{what} for {len(names)} of the tensors ({names[0]}{shapes(names[0])})"
             for what, names, shapes in kinds if names]
    if found:
        return "; ".join(found)
    old, new = ([len(group["params"]) for group in groups]
                for groups in (state["optimizer"]["param_groups"], optimizer.param_groups))
    return "" if old == new else (
        f"its optimizer has {_groups(old)}, and the one that Task.optimizer makes has "
        f"{_groups(new)}. Make all groups there, those that are to train later with a learning "
        "rate of 0")


def _groups(sizes: Sequence[int]) -> str:
    many = f"{len(sizes)} groups" if len(sizes) > 1 else "1 group"
    if len(sizes) > 6:  # some make a group for each parameter
        return f"{many} of {sum(sizes)} parameters in all"
    return f"{many} of {' and '.join(map(str, sizes))} parameters"


def take_copies(optimizer: Optimizer) -> None:
    """Give a freshly loaded optimizer its own memory. `load_state_dict` keeps CPU tensors as they
    are, which are mapped from the checkpoint's file."""
    for held in [*optimizer.state.values(), *optimizer.param_groups]:
        for key, value in held.items():
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                held[key] = value.clone()


def _choose(folder: Path, rec: Recorder, requested: str | None, attempt: int,
            ) -> tuple[dict[str, Any], list[bytes]]:
    """On rank 0: a description of the chosen checkpoint, for all ranks, and the contents of the
    ranks' own files."""
    files.remove_unfinished(folder)
    progress = Progress()
    rec.detail = _progress_text("verifying a checkpoint", progress)
    try:
        if requested is None:
            path = checkpoint.newest(folder, rec.warn, progress)
        else:
            path = _verified(folder, requested, attempt, rec, progress)
        if path is None:
            if checkpoint.listed(folder):
                return {"problem": f"none of the checkpoints in {folder} can be loaded; remove "
                                   "the folder to start from the beginning"}, []
            return {"name": "", "folder": _identity(folder)}, []
        entry = checkpoint.read_manifest(path)["files"][checkpoint.STATE]
        return {"name": path.name, "folder": _identity(folder), "size": entry["size"],
                "sha256": entry["sha256"], "identity": _identity(path / checkpoint.STATE),
                }, checkpoint.load_ranks(path)
    except UserError as err:
        return {"problem": str(err)}, []
    finally:
        rec.detail = ""


def _verified(folder: Path, requested: str, attempt: int, rec: Recorder, progress: Progress
              ) -> Path:
    """Verify the requested checkpoint and set later ones aside. If those stayed, a restart would go
    on from them, and pruning would delete new checkpoints before them. Raises UserError."""
    path = folder / requested
    try:
        checkpoint.verify(path, progress)
    except checkpoint.Damaged as err:
        raise UserError(f"checkpoint {err}; choose another to go on from") from None
    aside = f"before-attempt-{attempt}"
    try:
        moved = checkpoints.set_aside(folder, requested, aside)
    except OSError as err:
        raise UserError(f"{err.filename}: {err.strerror}; the checkpoints after {requested} can't "
                        "be set aside") from None
    if moved:
        rec.warn(f"going on from {requested} as asked; moved to {folder / aside}: "
                 f"{', '.join(moved)}")
    return path


def _own_file(file: Path, chosen: dict[str, Any], rec: Recorder) -> Path | None:
    """This rank's own file, if it is the one that rank 0 chose or has the same content; else
    None."""
    here = _identity(file)
    if here is None:
        return None
    if here == chosen["identity"]:
        return file
    progress = Progress()
    rec.detail = _progress_text("verifying a checkpoint", progress)
    try:
        if checkpoint.digest(file, progress) == (chosen["size"], chosen["sha256"]):
            return file
    except OSError:
        return None
    finally:
        rec.detail = ""
    rec.warn(f"{chosen['name']} on this machine differs from rank 0's; going on from rank 0's")
    return None


def _notice_newer(folder: Path, name: str, rec: Recorder) -> None:
    """Warn if this machine's own folder holds a later checkpoint than the chosen one."""
    there = checkpoint.listed(folder)
    if there and there[-1].name > name:
        rec.warn(f"this machine has {there[-1].name}, but rank 0 does not: all ranks "
                 + (f"go on from rank 0's {name}" if name else "start from the beginning, as rank "
                    "0 has no checkpoint"))


def _send(file: Path, chosen: dict[str, Any], group: Group, rec: Recorder, *,
          wanted: bool) -> BinaryIO | None:
    """Send rank 0's file to the ranks that lack it. All ranks take part. Returns the received file,
    which has no name and lies in the run folder, or None if it was not `wanted` on this rank."""
    progress = Progress(total=chosen["size"])
    rec.detail = _progress_text(
        "sending a checkpoint" if group.rank == 0 else "receiving a checkpoint", progress)
    hashed, problem = hashlib.sha256(), ""
    out = tempfile.TemporaryFile(dir=file.parents[2]) if wanted else None  # noqa: SIM115
    try:
        source = checkpoints.opened(file) if group.rank == 0 else None
        for piece in group.broadcast_pieces(source, chosen["size"]):
            progress.done += len(piece)
            if out is not None and not problem:
                try:
                    out.write(piece)
                except OSError as err:  # go on receiving: the other ranks need this one
                    problem = f"no room here for the checkpoint from rank 0: {err.strerror}"
                hashed.update(piece)
        if out is not None:
            out.flush()
    finally:
        rec.detail = ""
    if out is not None and not problem and hashed.hexdigest() != chosen["sha256"]:
        problem = f"{chosen['name']} was changed on its way from rank 0: the hashes differ"
    if problem:
        raise UserError(problem)
    return out


def _identity(path: Path) -> str | None:
    """A text that identifies a file or folder on this machine until it changes; None if it does
    not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    changed = "" if path.is_dir() else f":{stat.st_size}:{stat.st_mtime_ns}"
    return f"{procs.boot_id()}:{stat.st_dev}:{stat.st_ino}{changed}"


def _progress_text(doing: str, progress: Progress) -> Callable[[], str]:
    return lambda: f"{doing}: {units.size(progress.done)} of {units.size(progress.total)}"
