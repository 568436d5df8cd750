"""All that the command line prints goes through here.

A terminal obeys what it is sent, and names, causes, notes, docstrings and texts of presets come
from files and other machines: one could set the window's title, write to the clipboard or hide what
follows. So every control character but newline and tab is taken out, with the whole sequence that
it begins.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from gpu_engine.common.clean import clean_text

word: str | None = None
"""Begins each answer, if another machine's gpu-engine has called this one (`--wire`); else None."""

for_scripts = click.option("--json", "as_json", is_flag=True, help="For scripts.")


def echo(text: str = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, made harmless, and a newline if `nl`. What the stream's encoding lacks becomes
    "?". err: on standard error."""
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    text = clean_text(text).encode(encoding, "replace").decode(encoding)
    click.echo(text, err=err, nl=nl)


def said_once() -> Callable[[str], bool]:
    """For `leases.acquire`: says on standard error what is waited for, and never gives up."""
    said = set[str]()

    def waits(whom: str) -> bool:
        if whom not in said:
            echo(f"waits for {whom}", err=True)
        said.add(whom)
        return False

    return waits


def table(rows: Iterable[Sequence[str] | str]) -> list[str]:
    """Rows as lines with two blanks between their columns, each as wide as its widest cell. A row
    that is a single text stands on a line of its own and has no columns."""
    rows = list(rows)
    columns = zip(*(row for row in rows if not isinstance(row, str)), strict=True)
    widths = [max(map(len, column)) for column in columns]
    return [row if isinstance(row, str) else
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def fields(record: Any, *without: str, **more: object) -> dict[str, object]:
    """A record as --json prints it: all its fields but for some, and `more`."""
    return {name: value for name, value in asdict(record).items() if name not in without} | more


def in_json(value: object) -> str:
    """`value` as one document of strict JSON, for scripts; on the wire one line."""
    return _json(value, 2) if word is None else line(value)


def line(value: object) -> str:
    """`value` as a line of strict JSON."""
    return f"{word or ''}{_json(value, None)}"


def _json(value: object, indent: int | None) -> str:
    from gpu_engine.events.writer import json_safe

    # On the wire a figure that is no number is none, and not a text.
    text = json.dumps(json_safe(value) if word is None else value, indent=indent,
                      allow_nan=word is not None, default=str)
    return text.replace("\x7f", "\\u007f")


def lines(values: Iterable[object]) -> None:
    """Print each as a line of JSON, as it comes; on the wire for as long as somebody is there."""
    if word is not None:
        from gpu_engine.remote.there import wire

        wire.end_with_input()
    for value in values:
        echo(line(value))


def answer_on_the_wire(ctx: click.Context, param: click.Parameter, given: str | None) -> None:
    """`--wire WORD`: from now on nothing but answers is printed."""
    global word
    if given is not None:
        from gpu_engine.remote.there import wire

        echo(wire.begin(given))
        word = given


def exactly(data: bytes) -> None:
    """Print bytes for another program as they are; at a terminal as a harmless text."""
    if sys.stdout.isatty():
        echo(data.decode(errors="replace"), nl=False)
    else:
        sys.stdout.buffer.write(data)


def agreed(question: str, *, enter: bool = True) -> bool:
    """Ask a question on standard error. `enter`: what Enter alone means. Raises click.Abort at the
    end of input."""
    return click.confirm(clean_text(question), default=enter, err=True)


def mistake(err: click.ClickException) -> None:
    """Print what click says about a command line, which it quotes."""
    said = io.StringIO()
    err.show(said)
    echo(said.getvalue(), err=True, nl=False)


def fault(err: Exception) -> None:
    """Print the traceback of a fault of ours."""
    echo("".join(traceback.format_exception(err)), err=True, nl=False)
