"""The names that a person's ~/.ssh/config has for hosts, to be offered. Nothing else is taken from
it: `ssh` itself reads the rest.

ssh_config(5): `Host` lines hold patterns, of which those without wildcards are names; `Include`
takes files, relative ones from ~/.ssh. What stands below a condition (an Include within a `Host` or
`Match` block) is for that block's hosts and names no others.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_engine.common.files import open_file
from gpu_engine.remote.reach.records import is_name

_MOST_FILES, _LONGEST, _MOST_NAMES = 100, 1 << 20, 1000


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
            text = file.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return
    conditional = False
    for line in text.splitlines():
        key, words = _words(line)
        if key == "host":
            conditional = words != ["*"]
            yield from (word for word in words if _is_one(word, words))
        elif key == "match":
            conditional = [w.lower() for w in words] != ["all"]
        elif key == "include" and not conditional:
            for word in words:
                for included in _included(word):
                    yield from _read(included, seen)


def _is_one(word: str, line: list[str]) -> bool:
    """Whether it is one host's name, which no other word of its line excludes. What stands before
    an @ is a user to ssh, never part of a name."""
    return not set(word) & set("*?!@") and not any(
        other.startswith("!") and fnmatchcase(word, other[1:]) for other in line)


def _words(line: str) -> tuple[str, list[str]]:
    """A line's keyword, in small letters, and its arguments, quotes taken off."""
    found = re.fullmatch(r"\s*([^\s=#]*)\s*=?\s*(.*)", line)
    try:
        return (found[1].lower(), shlex.split(found[2], comments=True)) if found else ("", [])
    except ValueError:  # an open quote: ssh refuses the file
        return "", []


def _included(pattern: str) -> list[Path]:
    """The files that an Include names, sorted as ssh reads them."""
    home = _home()
    whole = home / pattern[2:] if pattern.startswith("~/") else home / ".ssh" / pattern
    if not any(c in str(whole) for c in "*?["):
        return [whole]
    anchor = Path(whole.anchor)
    try:
        return sorted(anchor.glob(str(whole.relative_to(anchor))))[:_MOST_FILES]
    except (OSError, ValueError, IndexError):
        return []
