"""The words of a command line that is still being typed. Pure."""

from __future__ import annotations

import shlex

_END = "\0"


def words(line: str) -> tuple[list[str], str]:
    """The whole words of `line` without the command's own, and the word at its end as far as it is
    typed, "" behind a blank. Quotes that are still open are closed."""
    for closing in ("", "'", '"'):
        try:
            found = shlex.split(line + _END + closing, posix=True)
        except ValueError:
            continue
        return found[1:-1], found[-1].removesuffix(_END) if len(found) > 1 else ""
    return [], ""


def trimmed(value: str, typed: str, current: str) -> str:
    """What bash must be told in place of `value`: it splits words at "=" and ":" and replaces only
    `current`, the part behind, where `typed` is the whole word. Inside quotes it does not split."""
    part = current.lstrip("'\"")
    if part and not part.strip("=:"):
        part = ""
    if not typed.endswith(part) or not value.startswith(typed[:len(typed) - len(part)]):
        return value
    return value[len(typed) - len(part):]
