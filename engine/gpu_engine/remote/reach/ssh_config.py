"""The names that a person's ~/.ssh/config has for hosts, to be offered. Nothing else is taken from
it: `ssh` itself reads the rest.

ssh_config(5): `Host` lines hold patterns, of which those without wildcards are names; `Include`
takes files, relative ones from ~/.ssh.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from gpu_engine.common.files import open_file
from gpu_engine.remote.reach.records import is_name

_MOST_FILES, _LONGEST, _MOST_NAMES = 100, 1 << 20, 1000
_LINE = re.compile(r"\s*(host|include)\s*[\s=]\s*(.*)", re.IGNORECASE)


def names(config: Path | None = None) -> list[str]:
    """The names in the order of the file, each once; none where it can't be read. `config`:
    another file than the person's."""
    found = dict.fromkeys(filter(is_name, _read(config or own(), set())))
    return list(found)[:_MOST_NAMES]


def own() -> Path:
    """The person's file. ssh looks in the home that the system's user list names, whatever HOME
    says."""
    return _home() / ".ssh" / "config"


def _home() -> Path:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path(os.environ.get("HOME") or "/")


def _read(path: Path, seen: set[Path]) -> Iterator[str]:
    """Every name of a `Host` line in `path` and what it includes. `seen`: files that were read."""
    if path in seen or len(seen) >= _MOST_FILES:
        return
    seen.add(path)
    try:
        with open_file(path) as file:
            lines = file.read(_LONGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for match in filter(None, map(_LINE.fullmatch, lines)):
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError:  # an open quote: ssh refuses the file
            continue
        if match[1].lower() == "host":
            if not any(word.startswith("!") for word in words):
                yield from (word for word in words if not set(word) & set("*?@"))
            continue
        for word in words:
            whole = _home() / ".ssh" / (_home() / word[2:] if word.startswith("~/") else word)
            try:
                included = sorted(Path("/").glob(str(whole).lstrip("/")))[:_MOST_FILES]
            except (OSError, ValueError, IndexError):
                continue
            for path in included:
                yield from _read(path, seen)
