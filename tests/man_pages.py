"""The manual pages of gpu-engine and gpu-panel, made from the commands themselves.

    python -m tests.man_pages      write docs/man/ again, after a command has changed

The pages are kept in the repository, as a build has no click to make them with, and are installed
into share/man/man1. click-man is not used: it dates each page with the day of the build, and puts
the paragraphs of a help text into one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpu_engine.cli import cli

FOLDER = Path(__file__).parents[1] / "docs" / "man"
_FILES = (("~/.config/gpu-panel", "settings.toml, hosts.toml, notify.toml, and presets"),
          ("~/.local/state/gpu-panel/runs", "a folder for each run"))
_ENVIRONMENT = (("GPU_PANEL_HOME", "a folder for all of these"),
                ("NO_COLOR", "nothing is coloured"))
_STATUS = (("0", "completed"), ("1", "failed"), ("2", "a mistake in the spec or the command line"),
           ("130", "interrupted or stopped"))


def pages() -> dict[str, str]:
    """File name → page, of both commands and of all below gpu-engine."""
    from gpu_panel.__main__ import main

    os.environ["COLUMNS"] = "80"
    found = {"gpu-panel.1": _page(main, click.Context(main, info_name="gpu-panel"))}
    for ctx in _all(cli, click.Context(cli, info_name="gpu-engine")):
        found[ctx.command_path.replace(" ", "-") + ".1"] = _page(ctx.command, ctx)
    return found


def _all(command: click.Command, ctx: click.Context) -> Iterator[click.Context]:
    yield ctx
    for name, below in _below(command, ctx):
        yield from _all(below, click.Context(below, ctx, info_name=name))


def _below(command: click.Command, ctx: click.Context) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return []
    each = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
    return [(name, one) for name, one in each if one is not None and not one.hidden]


def _page(command: click.Command, ctx: click.Context) -> str:
    path = ctx.command_path
    title = path.replace(" ", "-")
    help = command.help or ""
    short = " ".join(help.partition("\n\n")[0].split()).rstrip(".")
    short = short.partition(". ")[0].partition(": ")[0]
    usage = " ".join(command.collect_usage_pieces(ctx))
    out = [f'.TH "{title.upper()}" "1" "" "gpu-panel" "User Commands"', ".SH NAME",
           f"{_text(title)} \\- {_text(short[:1].lower() + short[1:])}", ".SH SYNOPSIS",
           f".B {_text(path)}", _text(usage) or ".br", ".SH DESCRIPTION"]
    out += _paragraphs(help)
    options = [p.get_help_record(ctx) for p in command.params if isinstance(p, click.Option)]
    out += _list("OPTIONS", [record for record in options if record])
    below = _below(command, ctx)
    if below:
        out += _list("COMMANDS", [(f"{path} {n}", c.get_short_help_str(200)) for n, c in below])
    if ctx.parent is None:
        if isinstance(command.epilog, str):
            out += [".PP", *_paragraphs(command.epilog)]
        out += [*_list("FILES", _FILES), *_list("ENVIRONMENT", _ENVIRONMENT)]
        if isinstance(command, click.Group):
            out += _list("EXIT STATUS", _STATUS)
    near = ["gpu-engine", "gpu-panel"] if ctx.parent is None else \
        [ctx.parent.command_path.replace(" ", "-")]
    near += [f"{title}-{name}" for name, _ in below]
    out += [".SH SEE ALSO", ",\n".join(f".BR {_text(n)} (1)" for n in near if n != title)
            .replace(",\n", " ,\n")]
    return "\n".join(out) + "\n"


def _paragraphs(text: str) -> list[str]:
    out: list[str] = []
    for part in text.replace("\b\n", "").split("\n\n"):
        if flat := " ".join(part.split()):
            out += [".PP", _text(flat)]
    return out


def _list(title: str, rows: object) -> list[str]:
    assert isinstance(rows, list | tuple)
    out = [f".SH {title}"]
    for name, told in rows:
        out += [".TP", f"\\fB{_text(name)}\\fR", _text(" ".join(told.split())) or "\\&"]
    return out


def _text(text: str) -> str:
    """Text of ours as troff has it: a backslash, a dash and a leading dot or quote are special.
    What is not ASCII is written by its number, so that no preprocessor has to know the encoding."""
    out = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in
                  text.replace("\\", "\\e").replace("-", "\\-"))
    return "\\&" + out if out.startswith((".", "'")) else out


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.1"):
        if old.name not in made:
            old.unlink()
    for name, page in made.items():
        (FOLDER / name).write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
