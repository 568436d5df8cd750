"""Code that was sent here, or kept for a run that waits: `code/NAME` below the home, made whole
under another name first.

`code/NAME.list` says what belongs to it. Whatever else is in the folder was written there by a run,
and such a folder is never removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import listing
from gpu_engine.code.listing import BadList, Entry
from gpu_engine.code.snapshot import Snapshot, content
from gpu_engine.common import paths
from gpu_engine.common.errors import UserError, telling
from gpu_engine.runs import environment, job, notes, waiting
from gpu_engine.runs.folder import Run, all_parts, all_runs

KEPT = 24 * 3600.0
"""Seconds for which code that no run uses is kept: a run may be about to start in it."""
_ROOM = 2 << 30
"""Bytes of code in all, beyond which what was used last is kept and the rest goes earlier."""
_COPIES = 100
"""Folders of the same code, at most: one more whenever a run has changed the files of the others.
"""
_NAME = re.compile(r"[0-9a-f]{64}")
_SENDING = ".sending-"


def save(listed: bytes, contents: Sequence[bytes]) -> Path:
    """Keep code: its list of files, and their contents in the order of the list. All files are
    written, then the folder is renamed. Returns the folder that holds it. Raises UserError if it
    can't be written, or a file is not what the list says."""
    place, there = place_of(listing.name_of(listed))
    if there:
        mark_used(place)
        return place
    with telling(f"the code can't be written to {root()}"):
        paths.private_folder(root())
        temporary = root() / f"{_SENDING}{secrets.token_hex(16)}"
        try:
            fill(temporary, listing.unpacked(listed), contents)
            _list_of(place).touch(0o600)
            _list_of(place).write_bytes(listed)
            try:
                temporary.rename(place)
            except OSError:  # somebody else may have kept the same at the same moment
                if not _unchanged(place):
                    raise
            _remove_old()
            return place
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def fill(folder: Path, entries: Sequence[Entry], contents: Sequence[bytes]) -> None:
    """Write all files into a new folder. Links come last, so that no file is written through one.
    Raises UserError where one is not what the list says."""
    folder.mkdir(mode=0o700)
    links = []
    for entry, data in zip(entries, contents, strict=True):
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UserError(f"{os.fsdecode(entry.path)} was changed on its way here; try again")
        target = folder / os.fsdecode(entry.path)
        if not target.parent.is_dir():
            paths.private_folder(target.parent)
        if entry.kind == "link":
            links.append((target, data))
            continue
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o755 if entry.kind == "program" else 0o644)
    for target, data in links:
        target.symlink_to(os.fsdecode(data))


def place_of(name: str) -> tuple[Path, bool]:
    """Where this code is, or would be, and whether it is there. Raises UserError."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} is no name of code")
    for number in range(1, _COPIES + 1):
        place = root() / (name[:listing.SHORT] + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(place):
            return place, False
        with contextlib.suppress(OSError):
            if listing.name_of(_list_of(place).read_bytes()) == name and _unchanged(place):
                return place, True
    raise UserError(f"{_COPIES} folders of this code, all changed by runs, are in {root()}; "
                    "delete some")


def of_folder(folder: Path) -> Snapshot | None:
    """The code in `folder`, which is a copy or a part of one; None: it is neither. Raises
    UserError."""
    place = next((p for p in (folder, *folder.parents) if p.parent == root()), None)
    if place is None or not _list_of(place).is_file() or (
            whole := load(listing.name_of(_list_of(place).read_bytes()))) is None:
        return None
    inner = b"" if folder == place else os.fsencode(folder.relative_to(place)) + b"/"
    files = [(replace(entry, path=entry.path.removeprefix(inner)), data)
             for entry, data in zip(whole.entries, whole.contents, strict=True)
             if entry.path.startswith(inner)]
    return Snapshot(str(folder), tuple(e for e, _ in files), tuple(data for _, data in files))


def load(name: str) -> Snapshot | None:
    """The code of this name; None if it is not there any more. Raises UserError."""
    place, there = place_of(name)
    if not there:
        return None
    with telling(f"the code in {place}"):
        entries = listing.unpacked(_list_of(place).read_bytes())
        return Snapshot(str(place), entries, tuple(content(place, e.path)[1] for e in entries))


def _unchanged(place: Path) -> bool:
    """Whether every file of the code there is as it was sent."""
    try:
        entries = listing.unpacked(_list_of(place).read_bytes())
        found = ((e, *content(place, e.path)) for e in entries)
        return all(kind == e.kind and hashlib.sha256(data).hexdigest() == e.sha256
                   for e, kind, data in found)
    except (OSError, BadList):
        return False


def _all() -> Iterator[tuple[Path, tuple[Entry, ...]]]:
    for file in sorted(root().glob("*.list")):
        with contextlib.suppress(OSError, BadList):
            yield file.with_suffix(""), listing.unpacked(file.read_bytes())


def remove_unused(folder: str) -> tuple[str | None, str | None]:
    """Delete the code whose folder holds `folder`: that folder, or None and why it stays, in words;
    (None, None) where there is no such code."""
    for place, entries in _all():
        if _holds(place, folder):
            if why := _in_use(place, entries, _users()):
                return None, f"its code stays in {place}: {why}"
            _remove(place)
            return str(place), None
    return None, None


def _in_use(place: Path, entries: tuple[Entry, ...], users: Sequence[tuple[Run, str]]
            ) -> str | None:
    """Why the code there has to stay; None: it has not."""
    if user := next((run.id for run, folder in users if _holds(place, folder)), None):
        return f"run {user} uses it"
    return "there are files in it that were not sent" if _others(place, entries) else None


def _remove_old() -> None:
    """Delete code that no run here has used for a day, or lately where there is much, and what was
    sent and never finished. A folder with files of a run's own stays, and code that a waiting run
    needs, or one that a person keeps."""
    users, room = _users(), _ROOM
    waits = (waiting.read(paths.runs_folder() / name)
             for name in waiting.ids(paths.queue_folder()))
    needed = {entry.code for entry in waits if entry is not None}
    for run in all_runs():
        known = job.read(run.path)  # a job may still start, for the first time or again
        if notes.read(run.path).verdict == "keep" or (known is not None and not known.over):
            needed.add(environment.read(run.path).code)
    for place, entries in sorted(_all(), key=lambda one: _age(_list_of(one[0]))):
        room -= sum(entry.size for entry in entries)
        if (room < 0 or _age(_list_of(place)) > KEPT) \
                and listing.name_of(listing.packed(entries)) not in needed \
                and not _in_use(place, entries, users):
            _remove(place)
    for path in root().glob(f"{_SENDING}*"):
        if _age(path) > KEPT:
            with contextlib.suppress(OSError):
                shutil.rmtree(path)


def _users() -> list[tuple[Run, str]]:
    """All that may have been started in code that was sent or kept, and where they were."""
    return [(run, plan.runs_in if (plan := run.plan()) is not None else run.cwd())
            for run in (*all_parts(), *all_runs())]


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _list_of(place).unlink(missing_ok=True)


def _holds(place: Path, folder: str) -> bool:
    """Whether `folder` is the place, or below it."""
    inner = Path(os.path.realpath(folder))
    return Path(os.path.realpath(place)) in (inner, *inner.parents)


def _age(path: Path) -> float:
    """Seconds since it was written or used; 0 if it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _others(place: Path, entries: tuple[Entry, ...]) -> bool:
    """Whether there is a file that was not sent, or one that was changed. What Python compiled does
    not count, nor links to elsewhere (`kept.py` makes some): nothing is lost with those."""
    known = {os.fsdecode(e.path) for e in entries}
    for path in place.rglob("*"):
        inner = path.relative_to(place)
        if path.is_symlink() and os.path.isabs(os.readlink(path)):  # noqa: PTH115, PTH117
            continue
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in inner.parts \
                and str(inner) not in known:
            return True
    return place.exists() and not _unchanged(place)


def root() -> Path:
    return paths.home() / "code"


def _list_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.list")


def mark_used(place: Path) -> None:
    """It was just asked for."""
    with contextlib.suppress(OSError):
        os.utime(_list_of(place))
