"""A checkpoint: what it holds, how its files are written, and whether they are whole.

A checkpoint is a folder RUN/checkpoints/step-00000500 with

    state.pt         model, optimizer, schedule, scaler and position, the same for every rank
    rank-00003.pt    the state of rank 3 alone: its random generators
    manifest.json    the files' sizes and SHA-256, step, attempt, mode, world size, metrics

It is complete or absent. Rank 0 writes all of it, under a temporary name that is synced and then
renamed as the last act. The hashes are there because `torch.load` does not notice a flipped byte.
Only tensors and plain values are stored, so that loading never runs code (`weights_only=True`).
This is checked when saving, while a person can still do something about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import DELETING, WRITING, read_inside, settle, write_inside
from gpu_engine.runs.checkpoints import (
    MANIFEST,
    STATE,
    Damaged,
    FileEntry,
    inside,
    listed,
    name_of,
    opened,
    read_manifest,
)
from gpu_engine.worker.rank.memory import is_gpu_out_of_memory
from gpu_engine.worker.rank.recorder import Progress

_PIECE = 4 << 20
"""Files are written, hashed and read in pieces, so that none is held in memory as a whole."""


class NotWritten(Exception):
    """A checkpoint could not be written. Earlier checkpoints are untouched."""


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that `save` has written."""

    path: Path
    step: int
    size: int
    """Bytes of all its files together."""


# --- what it holds --------------------------------------------------------------------------------

def plain(state: Any, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
    """A copy of `state` in which numpy's scalars, as a rate that numpy has computed, are Python's
    numbers, and each tensor `t` is `tensor(t)`."""
    kind = type(state)
    if isinstance(state, Tensor):
        return tensor(state)
    if kind in (dict, OrderedDict, Counter):
        made = kind({plain(key, tensor): plain(value, tensor) for key, value in state.items()})
        if kind is OrderedDict:  # a module's state_dict keeps versions in its attributes
            made.__dict__.update(vars(state))
        return made
    if kind in (list, tuple, set):
        return kind(plain(value, tensor) for value in state)
    numpy = sys.modules.get("numpy")
    return state.item() if numpy is not None and isinstance(state, numpy.generic) else state


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors in `state`."""
    tensors: list[Tensor] = []
    plain(state, lambda tensor: tensors.append(tensor) or tensor)
    return tensors


def check_loads(state: Any) -> None:
    """Raise UserError unless `plain` of `state` can be loaded without running code. The values of
    its tensors are not looked at, so that this takes no memory."""
    def small(tensor: Tensor) -> Tensor:
        return torch.empty(0) if type(tensor) in (Tensor, torch.nn.Parameter) else tensor

    try:
        torch.load(io.BytesIO(to_bytes(plain(state, small))), weights_only=True)
    except Exception as err:
        if is_out_of_memory(err):
            raise
        why = str(err).rpartition("WeightsUnpickler error: ")[2].partition(". ")[0]
        raise UserError("a checkpoint can't hold the state of the model or the optimizer, as it "
                        "can't be loaded without running code; keep plain values and tensors "
                        f"there ({type(err).__name__}: {why})") from err


def nonfinite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first of the pairs (name, tensor) whose tensor holds a value that is not
    finite; None if all are finite.

    Only the smallest and the largest value are looked at (a NaN is both). That takes one pass and
    little memory, whereas `isfinite` makes temporary tensors as large as the tensor itself.
    """
    ends: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in named:
        value = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
        # float8 has no smallest value, and no infinity.
        if value.numel() and value.is_floating_point() and value.element_size() > 1:
            pair = torch.stack(torch.aminmax(value)).double()
            ends.setdefault(value.device, []).append((name, pair))
    for pairs in ends.values():  # waits for each device once
        finite = torch.stack([pair for _, pair in pairs]).isfinite().all(1).tolist()
        if not all(finite):
            return pairs[finite.index(False)][0]
    return None


def to_bytes(value: Any) -> bytes:
    """The bytes that torch.save writes for `value`."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


# --- writing --------------------------------------------------------------------------------------

def save(folder: Path, state: dict[str, Any], ranks: list[bytes], about: dict[str, Any],
         progress: Progress | None = None) -> WrittenCheckpoint:
    """Write a checkpoint of `state`, which has the key "step", and of the bytes in `ranks`, one
    item a rank, into `folder`.

    `progress` counts the bytes as they are written. Raises NotWritten if the disk or memory does
    not allow it (full, over quota, read-only), with nothing left behind, and UserError if the state
    holds a value that could not be loaded.
    """
    state = plain(state)
    progress = progress or Progress()
    progress.total = sum(map(len, ranks)) + sum(
        tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
    final = folder / name_of(state["step"])
    temp = folder / f"{WRITING}{final.name}-{os.getpid()}"
    files: dict[str, FileEntry] = {}

    def write(name: str, fill: Callable[[Any], Any]) -> None:
        fd = os.open(temp / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb", buffering=1 << 20) as file:
            out = _Hashing(file, progress)
            try:
                fill(out)
            except RuntimeError as err:
                raise out.error or err from None
            file.flush()
            os.fsync(file.fileno())
        files[name] = {"size": out.size, "sha256": out.hash.hexdigest()}

    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise OSError(f"{folder.name} is a link, and none is followed in a run folder")
        check_loads(state)
        temp.mkdir(mode=0o700)
        write(STATE, lambda out: torch.save(state, out))
        for rank, data in enumerate(ranks):
            write(f"rank-{rank:05d}.pt", lambda out, data=data: out.write(data))
        size = sum(entry["size"] for entry in files.values())
        manifest = {"version": 1, **about, "step": state["step"], "torch": torch.__version__,
                    "files": dict(files)}
        text = json.dumps(manifest, indent=1, allow_nan=True).encode()
        write(MANIFEST, lambda out: out.write(text))
        settle(temp)
        if final.exists():  # an earlier attempt's, damaged or no longer wanted
            _remove(final)
        temp.rename(final)
        settle(folder)
    except BaseException as err:
        shutil.rmtree(temp, ignore_errors=True)
        if isinstance(err, OSError):
            raise NotWritten(f"{final}: {err.strerror or err}") from err
        if is_out_of_memory(err):
            raise NotWritten(f"{final}: not enough memory ({err})") from err
        raise
    return WrittenCheckpoint(final, state["step"], size)


class _Hashing:
    """A file that hashes what is written to it. It also keeps the OSError of a failed write, as
    torch.save turns a full disk into a RuntimeError without a cause."""

    def __init__(self, file: Any, progress: Progress) -> None:
        self._file, self._progress = file, progress
        self.hash, self.size = hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):  # torch writes a tensor whole, however large
            piece = view[start:start + _PIECE]
            self.hash.update(piece)
            try:
                self._file.write(piece)
            except OSError as err:
                self.error = err
                raise
            self.size += len(piece)
            self._progress.done += len(piece)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def is_out_of_memory(err: BaseException) -> bool:
    """Whether `err` means that there was not enough memory, on the host or on a GPU."""
    return isinstance(err, MemoryError) or is_gpu_out_of_memory(err) or (
        isinstance(err, RuntimeError) and "can't allocate memory" in str(err))


def add_metrics(path: Path, metrics: dict[str, float]) -> None:
    """Put the values of an evaluation into the manifest of an existing checkpoint.

    Raises OSError if it can't be written, Damaged if there is no manifest.
    """
    manifest = read_manifest(path) | {"metrics": metrics}
    write_inside(*inside(path, MANIFEST), json.dumps(manifest, indent=1, allow_nan=True))


def prune(folder: Path, keep: int, best: Path | None) -> None:
    """Delete all checkpoints but the newest `keep` and `best`. One that can't be deleted stays."""
    for path in listed(folder)[:-keep]:
        if path != best:
            with contextlib.suppress(OSError):
                _remove(path)


def _remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that its name never stands for half of it."""
    gone = path.with_name(f"{DELETING}{path.name}-{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# --- reading --------------------------------------------------------------------------------------

def verify(path: Path, progress: Progress | None = None) -> None:
    """Compare every file with the manifest. Raises Damaged naming the first that differs."""
    for file, entry in read_manifest(path)["files"].items():
        try:
            same = digest(path / file, progress) == (entry["size"], entry["sha256"])
        except OSError as err:
            raise Damaged(f"{path.name}/{file}: {err.strerror or err}") from err
        if not same:
            raise Damaged(f"{path.name}/{file}: its content has changed since it was written")


def digest(path: Path, progress: Progress | None = None) -> tuple[int, str]:
    """A file's size in bytes and its SHA-256. `progress` counts the bytes read. Raises OSError."""
    hashed, size, progress = hashlib.sha256(), 0, progress or Progress()
    piece = memoryview(bytearray(_PIECE))
    with opened(path) as file:
        progress.total = (progress.total or 0) + os.fstat(file.fileno()).st_size
        while count := file.readinto(piece):
            hashed.update(piece[:count])
            size += count
            progress.done += count
    return size, hashed.hexdigest()


def newest(folder: Path, warn: Callable[[str], None],
           progress: Progress | None = None) -> Path | None:
    """The newest checkpoint that passes `verify`; None if there is none. `warn` is called with a
    sentence for each damaged one that is passed over."""
    for path in reversed(listed(folder)):
        try:
            verify(path, progress)
        except Damaged as err:
            warn(f"checkpoint {err}; going on with the one before")
        else:
            return path
    return None


def load(file: Path) -> dict[str, Any]:
    """The state in a verified file, on the CPU. Its tensors are mapped from the file: all ranks of
    a machine share those pages, and they take no memory of their own. Copy what must outlive the
    file. Raises Damaged."""
    try:
        return torch.load(os.fspath(file), map_location="cpu", weights_only=True, mmap=True)
    except Exception as err:
        raise Damaged(f"{file.parent.name}: can't be loaded: {err}") from err


def load_ranks(path: Path) -> list[bytes]:
    """The contents of the ranks' own files, in the order of ranks, of a verified checkpoint. Raises
    Damaged."""
    files = read_manifest(path)["files"]
    try:
        return [read_inside(*inside(path, name), entry["size"])
                for name, entry in sorted(files.items()) if name.startswith("rank-")]
    except OSError as err:
        raise Damaged(f"{path.name}: {err.strerror}") from err
