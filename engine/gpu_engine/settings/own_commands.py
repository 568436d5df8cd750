"""The person's own commands on keys: the tables [commands.NAME] of settings.toml. Pure.

A command is an argument list, or a line that is split into one before anything is put into it. So
what a run or a host is called is one argument and stays one. No shell sees it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Literal

from gpu_engine.common.values import convert, kind_of

Where = Literal["pane", "terminal", "background"]
PLACEHOLDERS: Mapping[str, str] = {
    "run.dir": "the folder of the run under the cursor", "run.id": "the id of that run",
    "pid": "the process under the cursor: a rank, a process on a GPU, or the run's supervisor",
    "host": "the machine on which that is"}
_KINDS = {"key": kind_of(str), "run": kind_of(list[str] | str), "help": kind_of(str),
          "confirm": kind_of(bool), "where": kind_of(Where)}
_HOLE = re.compile(r"\{([A-Za-z.]+)\}")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
_PLAIN = re.compile(r"[\w./:=@+,%~-]*")
"""What may stand in a word around a placeholder: a path or an option, but no text with spaces or
quotes, which is a command for the far side of ssh, for env, for Python."""
_SHELLS = frozenset({"sh", "ash", "bash", "dash", "fish", "ksh", "zsh"})


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A table [commands.NAME]."""

    name: str
    key: str
    """As in [keys]: "f9", or several with commas."""
    run: tuple[str, ...]
    """The program and its arguments, with placeholders."""
    help: str = ""
    """A sentence for the help; "" for none."""
    confirm: bool = False
    """Whether it is dangerous, so that it is asked for each time."""
    where: Where = "pane"
    """Its output in a pane; or it gets the terminal until it ends; or neither."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The placeholders that stand in it."""
        return tuple(dict.fromkeys(name for word in self.run for name in _HOLE.findall(word)))

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """The argument list with `values` for its placeholders, each of which is in `values`.
        Raises ValueError for a value that would be an option."""
        out = []
        for word in self.run:
            told = _HOLE.sub(lambda found: values[found[1]], word)
            if told.startswith("-") and not word.startswith("-"):
                raise ValueError(f"{word} would be the option {told}")
            out.append(told)
        return out


def read(tables: object) -> tuple[list[OwnCommand], list[tuple[str, object, str]]]:
    """The commands in a table [commands], and what is wrong with others: (key, value, why)."""
    found: list[OwnCommand] = []
    wrong: list[tuple[str, object, str]] = []
    if not isinstance(tables, dict):
        return [], [("commands", tables, "expected tables, [commands.NAME]")]
    for name, table in tables.items():
        problems = list(_problems(name, table))
        if problems:
            wrong += problems
            continue
        words = table["run"]
        found.append(OwnCommand(name, table["key"].strip(), tuple(
            words if isinstance(words, list) else shlex.split(words)), **{
                key: value for key, value in table.items() if key not in ("key", "run")}))
    return found, wrong


def _problems(name: str, table: Any) -> Iterator[tuple[str, object, str]]:
    at = f"commands.{name}"
    if not _NAME.fullmatch(name):
        yield at, table, "expected a name of small letters, digits and -"
        return
    if not isinstance(table, dict):
        yield at, table, f"expected a table, [{at}]"
        return
    for key, value in table.items():
        try:
            if key in _KINDS:
                convert(value, _KINDS[key])
            else:
                yield f"{at}.{key}", value, "no such setting; there are " + ", ".join(_KINDS)
        except ValueError as err:
            yield f"{at}.{key}", value, str(err)
    if not str(table.get("key", "")).strip():
        yield f"{at}.key", table.get("key", ""), 'expected a key, as "f9" or "ctrl+t"'
    if isinstance(table.get("run"), str | list) or "run" not in table:
        yield from ((f"{at}.run", table.get("run", ""), why) for why in _of_words(table.get("run")))


def _of_words(given: list[Any] | str | None) -> Iterator[str]:
    """What is wrong with the words of a command."""
    try:
        words = shlex.split(given) if isinstance(given, str) else given
    except ValueError as err:
        yield f"can't be split into words: {err}"
        return
    if not words or not all(isinstance(word, str) for word in words) or not words[0]:
        yield 'expected a program and its arguments, as ["nvtop", "-d", "2"]'
        return
    unknown = {name for word in words for name in _HOLE.findall(word)} - set(PLACEHOLDERS)
    for name in sorted(unknown):
        yield f"{{{name}}} is unknown; there are " + ", ".join(f"{{{n}}}" for n in PLACEHOLDERS)
    if _HOLE.search(words[0]):
        yield "the program itself has no placeholder"
    for before, word in pairwise(words):
        of_shell = PurePath(words[0]).name in _SHELLS and re.fullmatch(r"-\w*c\w*", before)
        if _HOLE.search(word) and (of_shell or not _PLAIN.fullmatch(_HOLE.sub("", word))):
            yield ("a shell would run what is put in there, or another program that takes a text "
                   'for its own language; write it as arguments of the line, as ["sh", "-c", '
                   '"du -sh \\"$1\\"", "sh", "{run.dir}"]')
