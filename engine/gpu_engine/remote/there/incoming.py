"""A checkpoint that is brought here from another host, kept in `incoming/KEY` below the home until
a run begins with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.files import open_file
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.reach.protocol import LackingFiles, OfferCheckpoint, SendCheckpoint
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import checkpoints
from gpu_engine.runs.folder import Run

_KEPT = 24 * 3600.0
"""Seconds for which a checkpoint is kept that no run has begun with."""
_KEY = re.compile(r"[0-9a-f]{32}")


def offer(asked: Asked, request: OfferCheckpoint) -> None:
    folder = _folder(request.key) / _checked(request.name)
    shared = Run(Path(request.path)).checkpoints / request.name if request.path else None
    with telling(f"the checkpoint can't be written to {_root()}"):
        _remove_old()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / checkpoints.MANIFEST).write_bytes(request.manifest)
        wanted = _entries(folder)
        lacking = [name for name, entry in wanted.items()
                   if shared is None
                   or not _taken_over(shared / name, folder / name, entry["sha256"])]
        size, free = sum(wanted[n]["size"] for n in lacking), shutil.disk_usage(folder).free
    if size > free:
        raise UserError(f"no space left in {folder.parent}: {request.name} has {size:,} bytes, "
                        f"{free:,} are free")
    asked.send(LackingFiles(tuple(lacking)))


def receive(asked: Asked, request: SendCheckpoint) -> None:
    data = request.content()
    folder, _, name = request.what.partition("/")
    place = _folder(request.key) / _checked(folder)
    with telling(f"the checkpoint can't be written to {_root()}"):
        size = _entries(place).get(name, {"size": 0})["size"]
        if not 0 <= request.offset <= size - len(data):
            raise UserError(f"{request.what[:80]!r} has not that many bytes")
        fd = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.seek(request.offset)
            file.write(data)
    asked.send(protocol.Done())


def put(key: str, name: str, run: Run) -> None:
    """Move the checkpoint into the folder of `run`, once every file of it is what its manifest
    says. Another of that name there is set aside. Raises UserError."""
    folder = _folder(key) / _checked(name)
    with telling(f"the checkpoint can't be written to {_root()}"):
        for short, entry in _entries(folder).items():
            if _hash(folder / short) != entry["sha256"]:
                raise UserError(f"{short} of {name} was changed on its way here; try again")
        run.checkpoints.mkdir(mode=0o700, exist_ok=True)
        target = run.checkpoints / name
        if target.exists():
            aside = run.checkpoints / f"before-{key[:8]}"
            aside.mkdir(mode=0o700, exist_ok=True)
            target.rename(aside / name)
        shutil.move(folder, target)
        shutil.rmtree(folder.parent, ignore_errors=True)


def _entries(folder: Path) -> dict[str, checkpoints.FileEntry]:
    """The files of a checkpoint besides its manifest. Raises UserError."""
    try:
        found = checkpoints.read_manifest(folder)["files"]
        ok = all(files.of_checkpoint(f"{folder.name}/{n}") and n != checkpoints.MANIFEST
                 and isinstance(e["size"], int) and isinstance(e["sha256"], str)
                 for n, e in found.items())
    except (checkpoints.Damaged, KeyError, TypeError, AttributeError, json.JSONDecodeError):
        ok, found = False, {}
    if not ok:
        raise UserError(f"{folder.name}: its manifest can't be used")
    return found


def _taken_over(source: Path, target: Path, sha256: str) -> bool:
    """Whether the file is on this disk already, where a run has it; then it is in `target`, as a
    second name of the same file: nobody writes to a checkpoint that is complete."""
    if _hash(source) != sha256:
        return False
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    return True


def _hash(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _remove_old() -> None:
    for path in _root().glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _KEPT:
                shutil.rmtree(path)


def _root() -> Path:
    return paths.home() / "incoming"


def _folder(key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise UserError(f"{key[:80]!r} is no name of a checkpoint on its way")
    return _root() / key


def _checked(name: str) -> str:
    if not files.of_checkpoint(f"{name}/{checkpoints.MANIFEST}"):
        raise UserError(f"{name[:80]!r} is no name of a checkpoint")
    return name
