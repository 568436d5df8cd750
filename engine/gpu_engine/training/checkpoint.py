"""Writing and loading checkpoints. A checkpoint is complete or absent, and verified before use.

A checkpoint is a folder RUN/checkpoints/step-00000500 with

    state.pt         model, optimizer, schedule, scaler and position, the same for every rank
    rank-00003.pt    the state of rank 3 alone: its random generators
    manifest.json    the files' sizes and SHA-256, step, attempt, mode, world size, metrics

Rank 0 writes all of it, under a temporary name that is synced and then renamed as the last act.
The hashes are there because `torch.load` does not notice a flipped byte. Only tensors and plain
values are stored, so that loading never runs code (`weights_only=True`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import DELETING, WRITING, read_inside, write_inside
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
from gpu_engine.training import checkpoint_state
from gpu_engine.worker.rank.memory import is_gpu_out_of_memory
from gpu_engine.worker.rank.recorder import Progress


class NotWritten(Exception):
    """A checkpoint could not be written. Earlier checkpoints are untouched."""


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that `save` has written."""

    path: Path
    step: int
    size: int
    """Bytes of all its files together."""


def rank_file(rank: int) -> str:
    """The name of the file that holds one rank's random generators."""
    return f"rank-{rank:05d}.pt"


def save(folder: Path, state: dict[str, Any], ranks: list[bytes], about: dict[str, Any],
         progress: Progress | None = None) -> WrittenCheckpoint:
    """Write a checkpoint of `state`, which has the key "step", and of the bytes in `ranks`, one
    item a rank, into `folder`.

    `progress` counts the bytes as they are written. Raises NotWritten if the disk or memory does
    not allow it (full, over quota, read-only), with nothing left behind, and UserError if the state
    holds a value that could not be loaded.
    """
    state = checkpoint_state.loadable(state)
    step = state["step"]
    progress = progress or Progress()
    progress.total = checkpoint_state.size_of(state) + sum(map(len, ranks))
    final = folder / name_of(step)
    temp = folder / f"{WRITING}{name_of(step)}-{os.getpid()}"
    write = partial(write_file, progress=progress)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise OSError(f"{folder.name} is a link, and none is followed in a run folder")
        temp.mkdir(mode=0o700)
        files = {STATE: write(temp / STATE, lambda out: torch.save(state, out))}
        _try_loading(temp / STATE)
        for rank, data in enumerate(ranks):
            name = rank_file(rank)
            files[name] = write(temp / name, lambda out, data=data: out.write(data))
        manifest = {"version": 1, **about, "step": step, "torch": torch.__version__,
                    "files": files}
        text = json.dumps(manifest, indent=1, allow_nan=True).encode()
        write(temp / MANIFEST, lambda out: out.write(text))
        sync(temp)
        if final.exists():  # an earlier attempt's, damaged or no longer wanted
            _remove(final)
        temp.rename(final)
        sync(folder)
    except BaseException as err:
        shutil.rmtree(temp, ignore_errors=True)
        if isinstance(err, OSError):
            raise NotWritten(f"{final}: {err.strerror or err}") from err
        if is_out_of_memory(err):
            raise NotWritten(f"{final}: not enough memory ({err})") from err
        raise
    return WrittenCheckpoint(final, step, sum(f["size"] for f in files.values()))


def is_out_of_memory(err: BaseException) -> bool:
    """Whether `err` means that there was not enough memory, on the host or on a GPU."""
    return isinstance(err, MemoryError) or is_gpu_out_of_memory(err) or (
        isinstance(err, RuntimeError) and "can't allocate memory" in str(err))


def load(path: Path) -> dict[str, Any]:
    """Verify a checkpoint's state and open it with `open_state`. Raises Damaged."""
    _verify_file(path, STATE, _entry(path, STATE), None)
    return open_state(path / STATE)


def open_state(file: Path) -> dict[str, Any]:
    """The state in a verified file, on the CPU. Its tensors are mapped from the file: all ranks of
    a machine share those pages, and they take no memory of their own. Copy what must outlive the
    file. Raises Damaged."""
    try:
        return torch.load(os.fspath(file), map_location="cpu", weights_only=True, mmap=True)
    except Exception as err:
        raise Damaged(f"{file.parent.name}: can't be loaded: {err}") from err


def from_bytes(data: bytes) -> Any:
    """The value that `to_bytes` turned into `data`. Raises Damaged."""
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as err:
        raise Damaged(f"can't be loaded: {err}") from err


def load_ranks(path: Path) -> list[bytes]:
    """The contents of the ranks' own files, in the order of ranks, verified. Raises Damaged."""
    files = read_manifest(path)["files"]
    found = []
    for rank in range(sum(name.startswith("rank-") for name in files)):
        name = rank_file(rank)
        entry = _entry(path, name)
        _verify_file(path, name, entry, None)
        found.append(read_inside(*inside(path, name), entry["size"]))
    return found


def _entry(path: Path, file: str) -> FileEntry:
    entry = read_manifest(path)["files"].get(file)
    if entry is None:
        raise Damaged(f"{path.name}: has no {file}")
    return entry


def _try_loading(file: Path) -> None:
    """Load the written file once, without reading the tensors' values: only torch knows for
    certain what it can load. Raises UserError."""
    try:
        torch.load(os.fspath(file), map_location="cpu", weights_only=True, mmap=True)
    except Exception as err:
        raise UserError(f"the checkpoint that was just written can't be loaded: {err}") from err


def verify(path: Path, progress: Progress | None = None) -> None:
    """Compare every file with the manifest. Raises Damaged naming the first that differs."""
    for file, entry in read_manifest(path)["files"].items():
        _verify_file(path, file, entry, progress)


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


def prune(folder: Path, keep: int, best: Path | None) -> None:
    """Delete all checkpoints but the newest `keep` and `best`. One that can't be deleted stays."""
    for path in listed(folder)[:-keep]:
        if path != best:
            with contextlib.suppress(OSError):
                _remove(path)


def add_metrics(path: Path, metrics: dict[str, float]) -> None:
    """Put the values of an evaluation into the manifest of an existing checkpoint.

    Raises OSError if it can't be written, Damaged if there is no manifest.
    """
    manifest = read_manifest(path) | {"metrics": metrics}
    write_inside(*inside(path, MANIFEST), json.dumps(manifest, indent=1, allow_nan=True))


def to_bytes(value: Any) -> bytes:
    """The bytes that torch.save writes for `value`."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that its name never stands for half of it."""
    gone = path.with_name(f"{DELETING}{path.name}-{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _verify_file(path: Path, file: str, entry: Any, progress: Progress | None) -> None:
    try:
        size, sha256 = digest(path / file, progress)
    except OSError as err:
        raise Damaged(f"{path.name}/{file}: {err.strerror or err}") from err
    if size != entry["size"]:
        raise Damaged(f"{path.name}/{file}: has {size} bytes, was written with {entry['size']}")
    if sha256 != entry["sha256"]:
        raise Damaged(f"{path.name}/{file}: its content has changed since it was written")

# ------------------------------------------------------------------------------------------------
# The files of a checkpoint. They are written, hashed and read in pieces, so that no file is ever
# held in memory as a whole.


_PIECE = 4 << 20
_SYNC = 64 << 20
"""Bytes after which written data is synced. So the progress counts what is really on the disk, and
the final sync does not take minutes in which nothing seems to happen."""


def write_file(path: Path, fill: Callable[[Any], Any], progress: Progress) -> FileEntry:
    """Make a new file, have `fill` write to it, and sync it. Returns its size and SHA-256. Raises
    OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=1 << 20) as file:
        out = _Hashing(file, progress)
        try:
            fill(out)
        except RuntimeError:
            if out.error is not None:
                raise out.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": out.size, "sha256": out.hash.hexdigest()}


def sync(folder: Path) -> None:
    """Sync a folder's entries to the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest(path: Path, progress: Progress | None = None) -> tuple[int, str]:
    """A file's size in bytes and its SHA-256. `progress` counts the bytes read. Raises OSError."""
    hashed, size = hashlib.sha256(), 0
    piece = memoryview(bytearray(_PIECE))
    with opened(path) as file:
        if progress is not None:
            progress.total = (progress.total or 0) + os.fstat(file.fileno()).st_size
        while count := file.readinto(piece):
            hashed.update(piece[:count])
            size += count
            if progress is not None:
                progress.done += count
    return size, hashed.hexdigest()


class _Hashing:
    """A file that hashes what is written to it. It also keeps the OSError of a failed write, as
    torch.save turns a full disk into a RuntimeError without a cause."""

    def __init__(self, file: Any, progress: Progress) -> None:
        self._file, self._progress = file, progress
        self.hash = hashlib.sha256()
        self.size = self._synced = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):  # torch writes a tensor whole, however large
            piece = view[start:start + _PIECE]
            self.hash.update(piece)
            self.size += len(piece)
            try:
                self._file.write(piece)
                if self.size - self._synced >= _SYNC:
                    self._file.flush()
                    os.fdatasync(self._file.fileno())
                    self._synced = self.size
            except OSError as err:
                self.error = err
                raise
            self._progress.done += len(piece)
        return len(view)

    def flush(self) -> None:
        self._file.flush()
