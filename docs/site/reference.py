"""The reference from the code itself: every command and key of a spec.

`python docs/site/reference.py` writes docs/commands.md and docs/spec.md. They are
kept in the repository, so that they can be read there; the tests compare them with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gpu_engine.cli import cli
from gpu_engine.common import values
from gpu_engine.plan.without_effect import NEEDS, PLACES
from gpu_engine.spec import schema
from gpu_engine.spec.catalog import key_docs
from gpu_panel.__main__ import main as panel

DOCS = Path(__file__).parents[1]
_MADE = "<!-- Written by docs/site/reference.py from the code: change it there. -->\n"


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {"commands.md": commands(), "spec.md": spec()}


# --- commands -----------------------------------------------------------------------------------

def commands() -> str:
    """All commands with their options."""
    parts = ["# Commands", _MADE,
             "`gpu-panel` opens the panel; `gpu-engine` does everything that the panel does, "
             "without a screen. RUN is an id, the beginning of one, or `last`; PRESET is a "
             "preset's name or a `.toml` file. `--help` says more of each. Exit status: 0 for "
             "completed, 1 for failed, 2 for a mistake in the spec or the command line, 130 for "
             "interrupted or stopped.\n"]
    for name, command in (("gpu-panel", panel), ("gpu-engine", cli)):
        parts += _command(name, command, 2)
    return "\n".join(parts)


def _command(path: str, command: click.Command, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *(piece for piece in command.collect_usage_pieces(context)
                              if piece != "[OPTIONS]")])  # they stand below
    yield f"{'#' * level} {path}\n"
    yield f"`{usage}`: {_escaped(_first(command.help or '', chr(10) + chr(10)))}\n"
    records = [record for p in command.get_params(context)
               if isinstance(p, click.Option) and "--help" not in p.opts
               and (record := p.get_help_record(context)) is not None]
    rows = [f"- `{option}`: {_escaped(_first(told, '. '))}" for option, told in records]
    if rows:
        yield "\n".join(rows) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _command(f"{path} {name}", below, min(level + 1, 4))


def _first(text: str, end: str) -> str:
    """The first paragraph or sentence of a help text, in one line: `--help` has the rest."""
    return " ".join(inspect.cleandoc(text).partition(end)[0].split())


# --- spec ---------------------------------------------------------------------------------------

def spec() -> str:
    """All keys of a spec."""
    parts = ["# Keys of a preset", _MADE,
             "A preset is a TOML file with these keys; `--set KEY=VALUE` and the form set the "
             "same. What is not given has its default. With a command of your own, a key with "
             "another value than its default is refused unless it reaches the command "
             "([scripts.md](scripts.md#what-runs)).\n"]
    told = key_docs()
    for section, of in _by_section(schema.keys().values()):
        cls = schema.SECTIONS.get(section)
        parts.append(f"## {section or 'name'}\n")
        if cls is not None:
            parts.append(_escaped(" ".join(inspect.cleandoc(cls.__doc__ or "").split())) + "\n")
        parts.append(_table(("key", "value", "default", "meaning"), (
            (f"`{k.dotted}`", values.describe(k.kind), _default(k.default), told[k.dotted])
            for k in of)))
    parts += ["## Where a key has no effect\n",
              "Only what you have set counts, which is another value than the default. A key of "
              "`[parallel]` has none either in a mode that does not have it, `run.stop_worse` and "
              "`run.halving` outside of a sweep, and "
              + ", ".join(f"`{key}` without `{other}`" for key, other in NEEDS.items())
              + ": a warning says so. All features by place: [places.md](places.md).\n",
              _table(("place", "refused", "a warning"), (
                  (at.where.partition(",")[0].format(by="torchrun, srun, `python -m "
                                                        "gpu_engine.worker`"),
                   *(", ".join(f"`{key}`" for key in of) for of in (at.refused, at.told)))
                  for at in PLACES.values()))]
    return "\n".join(parts)


def _by_section(found: Iterable[schema.Key]) -> Iterator[tuple[str, list[schema.Key]]]:
    sections: dict[str, list[schema.Key]] = {}
    for key in found:
        sections.setdefault(key.section, []).append(key)
    yield from sections.items()


def _default(value: object) -> str:
    return "" if value is None or value == {} else f"`{values.show(value)}`"


# --- Markdown -------------------------------------------------------------------------------------

def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head),
             *(tuple(_escaped(cell).replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    """Text in which *, _ and < mean themselves, outside of `code`."""
    return "".join(part if at % 2 else re.sub(r"([*_<\[])", r"\\\1", part)
                   for at, part in enumerate(re.split(r"(`[^`]*`)", text)))


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
