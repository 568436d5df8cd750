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

import click

from gpu_engine.common.clean import clean_text
from gpu_engine.common.errors import UserError


def echo(*parts: str | tuple[str, str], err: bool = False, nl: bool = True) -> None:
    """Print texts, made harmless, and a newline if `nl`. Of a pair the second is the colour of the
    first, for example ("ok", "green"), where colour is wanted. err: on standard error."""
    text = "".join(_painted(*part, err) if isinstance(part, tuple) else clean_text(part)
                   for part in parts)
    click.echo(_carried(text, err), err=err, nl=nl, color=True)


def in_json(value: object) -> str:
    """`value` as one document of strict JSON, for scripts."""
    from gpu_engine.events.writer import json_safe

    text = json.dumps(json_safe(value), indent=2, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def agreed(question: str) -> bool:
    """Ask a question; Enter alone means yes. Raises click.Abort at the end of input."""
    return click.confirm(clean_text(question), default=True)


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
    from gpu_engine.common.colour import wanted
    from gpu_engine.settings.file import colour_setting

    stream = sys.stderr if err else sys.stdout
    text = clean_text(text)
    return click.style(text, fg=colour) if wanted(
        os.environ, terminal=stream.isatty(), setting=colour_setting()) else text
