"""What is said after an action: what was done, and the command of gpu-engine that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from gpu_engine.common.clean import clean

if TYPE_CHECKING:
    from textual.app import App

    from gpu_engine.runs.notes import Notes

_MOST, _LONGEST = 3, 300
"""Commands that are shown, and characters of one, where a toast has room for them (panel.tcss):
what was cut would do something else."""


def done(app: App[Any], what: str, commands: Sequence[Sequence[str]], *,
         trouble: Sequence[str] = ()) -> None:
    """Say what was done. `commands`: the words after gpu-engine, for each that does a part of it.
    `trouble`: what went wrong in some parts."""
    lines = [shlex.join(["gpu-engine", *words]) for words in commands]
    wide, short = app.size.width - 5, list[str]()
    left = app.size.height * (25 if trouble else 15) // 100 - (len(lines) > 1) - sum(
        ceil(len(text) / wide) for text in (what, *trouble))
    for line in lines[:_MOST]:
        high = ceil((len(line) + 2) / wide)
        if len(line) <= _LONGEST and line == clean(line) and high <= left:
            short.append(f"$ {line}")
            left -= high
    rest = len(lines) - len(short)
    more = [f"and {rest} more such command{'s' * (rest > 1)}"] if rest and short else []
    app.notify("\n".join([what, *trouble, *short, *more]), markup=False,
               severity="warning" if trouble else "information", timeout=12 if trouble else None)


def note(run: str, before: Notes, after: Notes) -> list[str]:
    """The words of the command that changes what is written on a run."""
    words = [word for tag in after.tags if tag not in before.tags for word in ("--tag", tag)]
    words += [word for tag in before.tags if tag not in after.tags for word in ("--untag", tag)]
    if after.verdict != before.verdict:
        words.append(f"--{after.verdict or 'undecided'}")
    if after.name != before.name:
        words += ["--name", after.name or ""]
    return ["note", run, *words, *(["--", after.note] if after.note != before.note else [])]
