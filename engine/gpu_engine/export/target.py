"""Where rows go: what a target is given and does, and what targets share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError, telling
from gpu_engine.interpreters import choose

MOST_NAMES = 2000
"""Names of values; what a script logs under further names is left out."""
_LONGEST = 200
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one step, or of several of which only the mean was recorded."""

    step: int
    """The last of these steps."""
    t: float
    """When it ended, Unix seconds."""
    attempt: int
    values: Mapping[str, float]
    """Name → value. Values that are not known are left out; some may be NaN or infinite."""


@dataclass(frozen=True, slots=True)
class About:
    """What a target is told of the run before its rows."""

    id: str
    name: str
    created: float
    """Unix seconds."""
    config: Mapping[str, Any]
    """The spec as a nested dict, without what is not set."""
    tags: tuple[str, ...] = ()
    note: str = ""

    @property
    def title(self) -> str:
        """"digits 3f2a": tells runs of the same preset apart."""
        return f"{self.name} {self.id}"

    @property
    def unique(self) -> str:
        """An id that no other run has, of any person: a run's own id has four letters."""
        return f"{self.id}-{int(self.created):x}"


class Anew(Exception):
    """What was written so far can't be continued: the export begins again from the first row."""


class Target(Protocol):
    """Where rows go. The calls come in this order: `begin`, then any number of `write`, `rewind`
    and `publish`, and at the end either `close` or `abandon`. All but `abandon` may raise OSError
    and UserError. After `abandon` it may begin again, if one of the others has raised Anew."""

    def begin(self, about: About) -> None:
        """Get ready; nothing new is seen under the final name yet."""
        ...

    def write(self, row: Row) -> None:
        """Add a row. Raises Anew if that is only possible from the beginning."""
        ...

    def rewind(self, step: int) -> None:
        """An attempt begins at `step`, which has been written before: those rows and all after
        them are lost work. Raises Anew where they can only be taken back by writing all again."""
        ...

    def publish(self) -> None:
        """Let everything that was written so far be seen. More rows may follow."""
        ...

    def close(self) -> str:
        """The export is whole. Returns where it is, for people."""
        ...

    def abandon(self) -> None:
        """The export ends before it is whole: take back what must not be seen. Raises nothing."""
        ...


class Names:
    """Names as a target takes them. Two different names stay different, and a name always
    becomes the same one if the names before it are the same."""

    def __init__(self, refused: str = "") -> None:
        """`refused`: a regular expression for the characters that become "_"."""
        self._refused = re.compile(refused) if refused else None
        self._made: dict[str, str | None] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str | None:
        """The name to use for `name`; None if its values are left out."""
        if name not in self._made:
            if len(self._made) >= 2 * MOST_NAMES:
                return None
            self._made[name] = self._make(name)
        return self._made[name]

    def values(self, row: Row) -> dict[str, float]:
        """A row's values under the names to use."""
        named = ((self(name), value) for name, value in row.values.items())
        return {name: value for name, value in named if name is not None}

    def _make(self, name: str) -> str | None:
        if len(self._taken) >= MOST_NAMES:
            return None
        wanted = clean(name, _LONGEST) or "_"
        if self._refused is not None:
            wanted = self._refused.sub("_", wanted)
        made, number = wanted, 1
        while made in self._taken:
            number += 1
            made = f"{wanted}_{number}"
        self._taken.add(made)
        return made


class Aside:
    """An open file that gets its final name by `publish`. It can be written to after that, too.

    Until it is closed, nobody else can write that file in this way. What is left of a program that
    was killed is overwritten by the next.
    """

    def __init__(self, path: Path, mark: str) -> None:
        """`path`: the final name, in a folder that is made if it is missing. `mark`: a word for
        the name of the file beside it, `.MARK.exporting`. Raises UserError."""
        self.path = path
        self._beside = path.with_name(f".{mark}.exporting")
        self._published = False
        with telling(f"{path}: can't be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise UserError(f"{path} is a folder; name a file in it")
            with contextlib.suppress(FileNotFoundError):
                self._refuse_if_locked(path)
            # Opening a FIFO would wait for a reader.
            fd = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                         | os.O_NONBLOCK, 0o666)
            try:
                self._lock(fd)
                os.ftruncate(fd, 0)
            except BaseException:
                os.close(fd)
                raise
        self.file: BinaryIO = os.fdopen(fd, "w+b", buffering=1 << 16)

    def publish(self) -> None:
        """Put it under its final name. Raises OSError."""
        self.file.flush()
        if not self._published:
            os.fsync(self.file.fileno())
            self._beside.replace(self.path)
            self._published = True

    def close(self) -> None:
        """Publish and close it. Raises OSError."""
        self.publish()
        os.fsync(self.file.fileno())
        self.file.close()

    def abandon(self) -> None:
        """Close it. What is not published is removed. Raises nothing."""
        with contextlib.suppress(OSError):
            if not self._published:
                self._beside.unlink()
        # What is in the buffer may not be writable.
        with contextlib.suppress(OSError, ValueError):
            self.file.close()

    def _refuse_if_locked(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._lock(fd)
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.path} is being written by another export") from None
        except OSError:
            pass  # a file system without locks


def load(extra: str, *modules: str) -> list[Any]:
    """These modules, which come with the extra `extra` of gpu-panel, a library of the same name.
    Raises UserError that says how to install it if one is missing or can't be imported."""
    try:
        found = [import_module(name) for name in modules]
        # `wandb/`, which W&B makes, passes for a package where `python -m` is started.
        if any(module.__file__ is None for module in found):
            raise ModuleNotFoundError(name=extra)
        return found
    except ImportError as err:
        why = f"{extra} is not installed"
        if err.name is None or err.name.partition(".")[0] != extra:
            why = f"{extra} can't be imported ({err})"
        raise UserError(f"{why} for {sys.executable}, which runs gpu-engine;\n"
                        f"{choose.extra(extra)} installs it") from None
