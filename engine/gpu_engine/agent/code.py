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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpu_engine.agent.wire import Asked
from gpu_engine.common import places
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import open_file, reason
from gpu_engine.hosts import code, protocol
from gpu_engine.hosts.code import BadList, Entry
from gpu_engine.hosts.code_messages import (
    HASH,
    BuildCode,
    CodeAt,
    CodePreview,
    FindCode,
    Missing,
    MissingCode,
    PreviewCode,
    SendCode,
)
from gpu_engine.hosts.strict import BadMessage
from gpu_engine.runs import waiting
from gpu_engine.runs.folder import Run, all_parts, all_runs

KEPT = 24 * 3600.0
"""Seconds for which code that no run uses is kept: a run may be about to start in it."""
_COPIES = 100
"""Folders of the same code, at most: one more whenever a run has changed the files of the others.
"""
_KEY, _NAME = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")
_SENDING = ".sending-"


def find(asked: Asked, request: FindCode) -> None:
    """Code of which a run has changed a file is not that code any more."""
    place, there = _place(_checked(request.name, _NAME))
    if there:
        _touch(place)
    asked.say(CodeAt(str(place) if there else None))


def preview(asked: Asked, request: PreviewCode) -> None:
    """Only looks: neither a folder nor the age of one changes."""
    place, there = _place(_checked(request.name, _NAME))
    here = set() if there else {bytes.fromhex(sha)[:HASH] for sha in _contents()}
    hashes = [request.hashes[at:at + HASH] for at in range(0, len(request.hashes), HASH)]
    bits = _bits([not there and start not in here for start in hashes])
    asked.say(CodePreview(str(place), there, bits))


def send(asked: Asked, request: SendCode) -> None:
    try:
        data = request.content()
    except BadMessage as err:
        raise UserError(str(err)) from None
    most = code.LONGEST_LIST if request.what == "list" else code.LARGEST
    if not 0 <= request.offset <= most - len(data):
        raise UserError(f"more than the {most:,} bytes that code may have")
    with _told():
        _root().mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(_sent(request.key, request.what),
                     os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.seek(request.offset)
            file.write(data)
    asked.say(protocol.Done())


def missing(asked: Asked, request: MissingCode) -> None:
    _, entries = _listed(request)
    here = _contents()
    bits = _bits([entry.sha256 not in here for entry in entries])
    with _told():
        _sent(request.key, "missing").write_bytes(bits)
    asked.say(Missing(bits))


def _bits(missing: list[bool]) -> bytes:
    """As `Missing.bits`."""
    bits = bytearray((len(missing) + 7) // 8)
    for number, lacks in enumerate(missing):
        if lacks:
            bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def build(asked: Asked, request: BuildCode) -> None:
    """Nothing stands under the final name before all of it was verified."""
    listed, entries = _listed(request)
    try:
        with _told():
            missing = Missing(_sent(request.key, "missing").read_bytes())
            sent = _sent(request.key, "contents")
            sent.touch(mode=0o600)  # nothing was missing
            with sent.open("rb") as contents:
                here = _contents()

                def content(number: int, entry: Entry) -> bytes:
                    if missing.has(number):
                        return contents.read(entry.size)
                    copy = here.get(entry.sha256)
                    return _read(*copy) if copy is not None else b""

                place = _built(request.name, listed, entries, content, request.key)
    finally:
        for what in ("list", "missing", "contents"):
            _sent(request.key, what).unlink(missing_ok=True)
    asked.say(CodeAt(str(place)))


def keep(listed: bytes, contents: Sequence[bytes]) -> Path:
    """Keep code of this machine: its list of files, and their contents in the order of the list.
    Returns the folder that holds it. Raises UserError if it can't be written."""
    place, there = _place(code.name_of(listed))
    with _told():
        if there:
            _touch(place)
            return place
        _root().mkdir(mode=0o700, parents=True, exist_ok=True)
        return _built(code.name_of(listed), listed, code.unpacked(listed),
                      lambda number, entry: contents[number], secrets.token_hex(16))


def kept(name: str) -> Path | None:
    """The folder that holds the code of this name, as it was kept; None if there is none."""
    place, there = _place(_checked(name, _NAME))
    return place if there else None


def _built(name: str, listed: bytes, entries: tuple[Entry, ...],
           content: Callable[[int, Entry], bytes], key: str) -> Path:
    """Write all files, then rename. Raises OSError, and UserError as `_fill`."""
    temporary = _root() / f"{_SENDING}{key}"
    try:
        _fill(temporary, entries, content)
        place, there = _place(name)
        if not there:
            _list_of(place).write_bytes(listed)
            _moved(temporary, place)
        _touch(place)
        _remove_old()
        return place
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _moved(temporary: Path, place: Path) -> None:
    """Somebody else may have sent the same at the same moment."""
    try:
        temporary.rename(place)
    except OSError:
        if not _unchanged(place):
            raise


def _fill(folder: Path, entries: tuple[Entry, ...], content: Callable[[int, Entry], bytes]
          ) -> None:
    """Write all files. Links come last, so that no file is written through one. Raises UserError
    where one is not what the list says."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    links = []
    for number, entry in enumerate(entries):
        data = content(number, entry)
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UserError(f"{os.fsdecode(entry.path)} was changed on its way here; try again")
        target = folder / os.fsdecode(entry.path)
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if entry.kind == "link":
            links.append((target, data))
            continue
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o755 if entry.kind == "program" else 0o644)
    for target, data in links:
        target.symlink_to(os.fsdecode(data))


def _place(name: str) -> tuple[Path, bool]:
    """Where this code is, or would be, and whether it is there."""
    for number in range(1, _COPIES + 1):
        place = _root() / (name[:code.SHORT] + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(place):
            return place, False
        with contextlib.suppress(OSError):
            if code.name_of(_list_of(place).read_bytes()) == name and _unchanged(place):
                return place, True
    raise UserError(f"{_COPIES} folders of this code, all changed by runs, are in {_root()}; "
                    "delete some")


def _unchanged(place: Path) -> bool:
    """Whether every file of the code there is as it was sent."""
    try:
        entries = code.unpacked(_list_of(place).read_bytes())
        return all(hashlib.sha256(_read(place, e)).hexdigest() == e.sha256
                   and _kind(place / os.fsdecode(e.path)) == e.kind for e in entries)
    except (OSError, BadList):
        return False


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "link"
    return "program" if path.stat().st_mode & 0o100 else "file"


def _read(place: Path, entry: Entry) -> bytes:
    path = place / os.fsdecode(entry.path)
    if entry.kind == "link":
        return os.readlink(os.fsencode(path))  # noqa: PTH115 - a Path would drop a leading ./
    with open_file(path) as file:
        return file.read(entry.size + 1)


def _contents() -> dict[str, tuple[Path, Entry]]:
    """The hash of every file of code here → where one like it is. What a run has changed since is
    left out."""
    out: dict[str, tuple[Path, Entry]] = {}
    for place, entries in _all():
        for entry in entries:
            if entry.sha256 in out:
                continue
            with contextlib.suppress(OSError):
                if hashlib.sha256(_read(place, entry)).hexdigest() == entry.sha256:
                    out[entry.sha256] = place, entry
    return out


def _all() -> Iterator[tuple[Path, tuple[Entry, ...]]]:
    for file in sorted(_root().glob("*.list")):
        with contextlib.suppress(OSError, BadList):
            yield file.with_suffix(""), code.unpacked(file.read_bytes())


def remove_unused(folder: str) -> tuple[str | None, str | None]:
    """Delete the code whose folder holds `folder`: that folder, or None and why it stays, in words;
    (None, None) where there is no such code."""
    for place, entries in list(_all()):
        if not _holds(place, folder):
            continue
        user = next((run.id for run in _users() if _holds(place, run.cwd())), None)
        if user is not None:
            return None, f"its code stays in {place}: run {user} uses it"
        if _others(place, entries):
            return None, f"its code stays in {place}: there are files in it that were not sent"
        _remove(place)
        return str(place), None
    return None, None


def _remove_old() -> None:
    """Delete code that no run here has used for a day, and what was sent and never finished. A
    folder with files of a run's own stays, and code that a waiting run needs."""
    used = [run.cwd() for run in _users()]
    needed = _waited_for()
    for place, entries in list(_all()):
        if _old(_list_of(place)) and not any(_holds(place, u) for u in used) \
                and code.name_of(code.packed(entries)) not in needed \
                and not _others(place, entries):
            _remove(place)
    for path in _root().glob(f"{_SENDING}*"):
        if _old(path):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _users() -> list[Run]:
    """All that may have been started in code that was sent or kept."""
    return [*all_parts(), *all_runs()]


def _waited_for() -> set[str]:
    """The names of the code that waiting runs need."""
    found = (waiting.read(places.runs_folder() / name)
             for name in waiting.ids(places.queue_folder()))
    return {entry.code for entry in found if entry is not None and entry.code is not None}


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _list_of(place).unlink(missing_ok=True)


def _holds(place: Path, folder: str) -> bool:
    """Whether `folder` is the place, or below it."""
    inner = Path(os.path.realpath(folder))
    return Path(os.path.realpath(place)) in (inner, *inner.parents)


def _old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > KEPT
    except OSError:
        return False


def _others(place: Path, entries: tuple[Entry, ...]) -> bool:
    """Whether there is a file that was not sent, or one that was changed. What Python compiled does
    not count, nor links to elsewhere (`queue/code.py` makes some): nothing is lost with those."""
    known = {os.fsdecode(e.path) for e in entries}
    for path in place.rglob("*"):
        inner = path.relative_to(place)
        if path.is_symlink() and os.path.isabs(os.readlink(path)):  # noqa: PTH115, PTH117
            continue
        if (path.is_symlink() or not path.is_dir()) and "__pycache__" not in inner.parts \
                and str(inner) not in known:
            return True
    return place.exists() and not _unchanged(place)


def _listed(request: MissingCode | BuildCode) -> tuple[bytes, tuple[Entry, ...]]:
    """The list that was sent. Raises UserError."""
    name, path = _checked(request.name, _NAME), _sent(request.key, "list")
    try:
        with open_file(path) as file:
            listed = file.read(code.LONGEST_LIST + 1)
        entries = code.unpacked(listed)
    except (OSError, BadList) as err:
        raise UserError(f"the list of the code can't be used: {err}") from None
    if code.name_of(listed) != name:
        raise UserError("the list of the code was changed on its way here; try again")
    return listed, entries


def _root() -> Path:
    return places.home() / "code"


def _list_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.list")


def _sent(key: str, what: str) -> Path:
    return _root() / f"{_SENDING}{_checked(key, _KEY)}.{what}"


def _checked(word: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(word):
        raise UserError(f"{word[:80]!r} is no name of code")
    return word


def _touch(place: Path) -> None:
    """It was just asked for."""
    with contextlib.suppress(OSError):
        os.utime(_list_of(place))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A disk that is full, said as a person reads it."""
    try:
        yield
    except OSError as err:
        raise UserError(f"the code can't be written to {_root()}: {reason(err)}") from None
