"""All that the command line prints goes through here.

A terminal obeys what it is sent, and names, causes, notes, docstrings and texts of presets come
from files and other machines: one could set the window's title, write to the clipboard or hide what
follows. So every control character but newline and tab is taken out, with the whole sequence that
it begins. Our own colours are added behind that.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence

import click

from gpu_engine.common.clean import clean_text
from gpu_engine.common.errors import UserError


class Commands(click.Group):
    """A command with commands in it, whose help shows the whole first sentence about each, where
    click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and what they do."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in found
                if command is not None and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


for_scripts = click.option("--json", "as_json", is_flag=True, help="For scripts.")


def echo(*parts: str | tuple[str, str], err: bool = False, nl: bool = True) -> None:
    """Print texts, made harmless, and a newline if `nl`. Of a pair the second is the colour of the
    first, for example ("ok", "green"), where colour is wanted. err: on standard error."""
    text = "".join(_painted(*part, err) if isinstance(part, tuple) else clean_text(part)
                   for part in parts)
    click.echo(_carried(text, err), err=err, nl=nl, color=True)


def table(rows: Iterable[Sequence[str] | str]) -> list[str]:
    """Rows as lines with two blanks between their columns, each as wide as its widest cell. A row
    that is a single text stands on a line of its own and has no columns."""
    rows = list(rows)
    columns = zip(*(row for row in rows if not isinstance(row, str)), strict=True)
    widths = [max(map(len, column)) for column in columns]
    return [row if isinstance(row, str) else
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def in_json(value: object) -> str:
    """`value` as one document of strict JSON, for scripts."""
    from gpu_engine.events.writer import json_safe

    text = json.dumps(json_safe(value), indent=2, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


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


def unchanged(line: bytes) -> None:
    """Print a line as it is, into a pipe or a file. Raises UserError for a terminal."""
    if sys.stdout.isatty():
        raise UserError("a terminal obeys what a log may contain: write it into a file, or colours "
                        "alone pass in: gpu-engine logs --raw | less -R")
    sys.stdout.buffer.write(line + b"\n")


_STAND_INS = str.maketrans({"×": "x", "→": "->", "…": "...", "–": "-", "·": "-", "•": "*", "─": "-",
                            "Σ": "sum", "µ": "u", "±": "+-", "√": "sqrt", "⁻": "^-", "¹": "1",
                            "✓": "ok", "✗": "x", "●": "*", "○": "o"})


def _carried(text: str, err: bool) -> str:
    """`text` with ASCII in the place of our signs, where the locale is C or the stream's encoding
    lacks them. What else it lacks becomes "?"."""
    if text.isascii():
        return text
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    told = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), None)
    if told == "C.UTF-8" and not os.environ.get("LC_ALL"):  # Python made it of C, in LC_CTYPE
        told = os.environ.get("LANG")
    try:
        text.encode(encoding)
        return text.translate(_STAND_INS) if told in ("C", "POSIX") else text
    except UnicodeEncodeError:
        return text.translate(_STAND_INS).encode(encoding, "replace").decode(encoding)


def _painted(text: str, colour: str, err: bool) -> str:
    text = clean_text(text)
    terminal = (sys.stderr if err else sys.stdout).isatty()
    return click.style(text, fg=colour) if coloured(os.environ, terminal=terminal) else text


def coloured(env: Mapping[str, str], *, terminal: bool) -> bool:
    """Whether output is coloured: NO_COLOR (no-color.org) forbids it, FORCE_COLOR and
    CLICOLOR_FORCE demand it, CLICOLOR=0 forbids it (bixense.com/clicolors). Without them the
    setting output.colour decides ("always", "never"), else whether it goes to a terminal."""
    if env.get("NO_COLOR"):
        return False
    if any(env.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if env.get("CLICOLOR") == "0":
        return False
    from gpu_engine.settings import file

    try:
        setting = file.read().output.colour
    except UserError:  # what is printed may be just that
        setting = "auto"
    return terminal if setting == "auto" else setting == "always"
