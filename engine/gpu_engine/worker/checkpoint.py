"""Checkpoints: whole or not there at all, verified before they are trusted.

A checkpoint is a folder RUN/checkpoints/step-00000500 with

    state.pt         model, optimizer, schedule, scaler and position: the same on every rank
    rank-00003.pt    what is rank 3's own: its random generators
    manifest.json    the files' sizes and SHA-256, step, attempt, mode, world size, metrics

It is written under a temporary name, synced, and renamed as the last act; `torch.load` does not
notice a flipped byte, hence the hashes. Rank 0 writes all of it. Only plain values and tensors
are stored, so that loading never runs code (`weights_only=True`).
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
from pathlib import Path
from typing import Any

import torch

from gpu_engine.errors import UserError
from gpu_engine.files import DELETING, WRITING, write_atomic
from gpu_engine.worker.recorder import Progress

STATE, MANIFEST = "state.pt", "manifest.json"


class Damaged(Exception):
    """A checkpoint that is not what its manifest says."""


class NoSpace(Exception):
    """A checkpoint could not be written; those before it are as they were."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint as written."""

    path: Path
    step: int
    size: int
    """Bytes of all its files."""


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def save(folder: Path, state: dict[str, Any], ranks: list[bytes], about: dict[str, Any],
         progress: Progress | None = None) -> Saved:
    """Write one checkpoint of `state` (with "step") and each rank's own bytes into `folder`;
    `progress` counts the bytes as they are written.

    Raises NoSpace where it can't be written (full disk, quota, read-only), with nothing of it
    left behind; UserError where the state holds what could not be loaded safely.
    """
    step = state["step"]
    _refuse_odd(state, "state")
    progress = progress or Progress()
    progress.total = size_of(state) + sum(map(len, ranks))
    final = folder / name_of(step)
    temp = folder / f"{WRITING}{name_of(step)}-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        temp.mkdir(mode=0o700)
        files = {STATE: _write(temp / STATE, lambda out: torch.save(state, out), progress)}
        for rank, data in enumerate(ranks):
            name = rank_file(rank)
            files[name] = _write(temp / name, lambda out, data=data: out.write(data),
                                 progress)
        manifest = {"version": 1, **about, "step": step, "torch": torch.__version__,
                    "files": files}
        text = json.dumps(manifest, indent=1, allow_nan=True).encode()
        _write(temp / MANIFEST, lambda out: out.write(text), progress)
        _sync(temp)
        if final.exists():  # an earlier attempt's, which was damaged or went another way
            _remove(final)
        temp.rename(final)
        _sync(folder)
    except OSError as err:
        shutil.rmtree(temp, ignore_errors=True)
        raise NoSpace(f"{final}: {err.strerror or err}") from err
    return Saved(final, step, sum(f["size"] for f in files.values()))


def load(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU: every rank then copies it to its own device and
    touches no other. Raises Damaged."""
    return _read_tensors(_verified(path, STATE))


def load_bytes(path: Path) -> bytes:
    """The verified bytes of a checkpoint's state, to hand to a rank that can't read the folder."""
    return _verified(path, STATE)


def from_bytes(data: bytes) -> dict[str, Any]:
    return _read_tensors(data)


def load_ranks(path: Path) -> list[bytes]:
    """The verified bytes of what is each rank's own, in order. Raises Damaged."""
    count = sum(name.startswith("rank-") for name in read_manifest(path)["files"])
    return [_verified(path, rank_file(rank)) for rank in range(count)]


def read_manifest(path: Path) -> dict[str, Any]:
    """Raises Damaged."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if not isinstance(manifest["files"][STATE]["sha256"], str):
            raise TypeError
        int(manifest["step"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise Damaged(f"{path.name}: its manifest can't be read ({type(err).__name__})") from err
    return manifest


def verify(path: Path) -> None:
    """Compare every file with the manifest. Raises Damaged naming the first that differs."""
    for file in read_manifest(path)["files"]:
        _verified(path, file)


def newest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that verifies; each damaged one passed over is said through `warn`."""
    for path in reversed(listed(folder)):
        try:
            verify(path)
        except Damaged as err:
            warn(f"checkpoint {err}; going on with the one before")
        else:
            return path
    return None


def listed(folder: Path) -> list[Path]:
    """The checkpoint folders, by step; damaged ones too."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.name.startswith("step-") and p.is_dir())


def prune(folder: Path, keep: int, best: Path | None) -> None:
    """Keep the newest `keep` checkpoints and `best`. What can't be deleted stays."""
    for path in listed(folder)[:-keep]:
        if path != best:
            with contextlib.suppress(OSError):
                _remove(path)


def best_of(folder: Path, metric: str, largest: bool) -> tuple[Path, float] | None:
    """The checkpoint with the best value of `metric` in its manifest."""
    found = None
    for path in listed(folder):
        try:
            value = read_manifest(path).get("metrics", {}).get(metric)
        except Damaged:
            continue
        if isinstance(value, int | float) and value == value and (
                found is None or (value > found[1] if largest else value < found[1])):
            found = (path, float(value))
    return found


def note(path: Path, metrics: dict[str, float]) -> None:
    """Put what an evaluation found into the manifest of a checkpoint that is there already.

    Raises OSError where it can't be written, Damaged where there is no manifest.
    """
    manifest = read_manifest(path) | {"metrics": metrics}
    write_atomic(path / MANIFEST, json.dumps(manifest, indent=1, allow_nan=True))


def parse_best(text: str | None) -> tuple[str, bool] | None:
    """"loss" or "min:loss" → ("loss", False); "max:accuracy" → ("accuracy", True)."""
    if not text:
        return None
    how, colon, name = text.partition(":")
    if not colon:
        return text, False
    if how not in ("min", "max") or not name:
        raise UserError(f"train.best = {text!r}: expected a name, min:name or max:name")
    return name, how == "max"


def size_of(state: Any) -> int:
    """Bytes of the tensors in `state`, each storage once, as torch.save writes them."""
    storages: dict[int, int] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                storage = value.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            for inner in value.values():
                look(inner)
        elif isinstance(value, list | tuple | set):
            for inner in value:
                look(inner)

    look(state)
    return sum(storages.values())


def to_bytes(value: Any) -> bytes:
    """`value` as torch.save writes it."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


# --- files -------------------------------------------------------------------------------------

class _Hashing:
    """A file that knows the hash of what went into it, and the error that stopped it:
    torch.save turns a full disk into a RuntimeError without a cause."""

    def __init__(self, file: Any, progress: Progress) -> None:
        self._file, self._progress = file, progress
        self.hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as err:
            self.error = err
            raise
        self.hash.update(view)
        self.size += len(view)
        self._progress.done += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, fill: Callable[[Any], Any], progress: Progress) -> dict[str, Any]:
    """Fill a new file, sync it, and say what is in it. Raises OSError."""
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


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    """Delete a checkpoint so that at no moment half of it goes by its name."""
    gone = path.with_name(f"{DELETING}{path.name}-{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _verified(path: Path, file: str) -> bytes:
    entry = read_manifest(path)["files"].get(file)
    if entry is None:
        raise Damaged(f"{path.name}: has no {file}")
    try:
        data = (path / file).read_bytes()
    except OSError as err:
        raise Damaged(f"{path.name}/{file}: {err.strerror or err}") from err
    if len(data) != entry["size"]:
        raise Damaged(f"{path.name}/{file}: has {len(data)} bytes, was written with "
                      f"{entry['size']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"{path.name}/{file}: its content is not what was written")
    return data


def _read_tensors(data: bytes) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as err:
        raise Damaged(f"can't be loaded: {err}") from err


_PLAIN = (int, float, bool, str, bytes, type(None), torch.Tensor, torch.Size, torch.dtype,
          torch.device)


def _refuse_odd(value: Any, where: str) -> None:
    """Refuse what `weights_only=True` would refuse at load, while there's still something to do.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_odd(inner, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for number, inner in enumerate(value):
            _refuse_odd(inner, f"{where}[{number}]")
    elif not (type(value) in _PLAIN or isinstance(value, torch.Tensor)):
        raise UserError(f"a checkpoint can't hold {where}: it is a {type(value).__name__}, which "
                        "could not be loaded without running code; keep plain values")


