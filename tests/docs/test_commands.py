"""Every command in the documents is understood: its words, its options, its preset and its settings
are read as they would be. `test_as_typed` runs what can be run here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpu_engine.cli import cli
from gpu_engine.cli.spec_options import choose_spec
from gpu_engine.common.errors import UserError
from gpu_engine.spec import presets
from gpu_panel.__main__ import main as panel

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = {"commands.md", "spec.md"}
"""Written from the code: their lines are synopses."""


def lines(page: Path) -> Iterator[str]:
    """The lines of a page's blocks of code, without comments, continued ones joined."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield re.sub(r"(^|\s)#.*", "", line).strip()


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of every command of ours."""
    for page in PAGES:
        if page.name in MADE:
            continue
        for line in lines(page):
            line = re.sub(r"\$\(.*\)", "cpu:0", line)
            for part in re.split(r"&&|\|\||;", line):
                words = _words(part.partition(" > ")[0].partition(" | ")[0])
                if words and words[0] == "sudo":
                    words = words[1:]
                if words and words[0] in ("gpu-engine", "gpu-panel", "make"):
                    yield page.name, words


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # half of a sentence
        return []


FOUND = list({" ".join(words): (page, words) for page, words in commands()}.values())


def parsed(words: list[str]) -> list[click.Context]:
    """The command and the groups that it is in. Raises click's errors, as the program would."""
    context = (cli if words[0] == "gpu-engine" else panel).make_context(words[0], words[1:])
    found = [context]
    while isinstance(context.command, click.Group) and (
            rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name or "", rest, parent=context)
        found.append(context)
    return found


def test_there_are_commands_of_all_kinds():
    """Otherwise the tests below look at nothing."""
    assert len(FOUND) > 60
    assert {words[0] for _, words in FOUND} == {"gpu-engine", "gpu-panel", "make"}
    assert {page for page, _ in FOUND} >= {"README.md", "headless.md", "queue.md", "sweep.md",
                                           "export.md"}


INLINE = [(page.name, words) for page in PAGES if page.name not in MADE
          for code in re.findall(r"`(gpu-(?:engine|panel) [^`]+)`", page.read_text())
          if (words := _words(code))]


@pytest.mark.parametrize(("page", "words"), INLINE, ids=lambda x: x if isinstance(x, str) else None)
def test_what_the_text_names_is_there(page, words):
    """Verbs and options, of commands that need not be whole."""
    command: click.Command = cli if words[0] == "gpu-engine" else panel
    context = click.Context(command, info_name=words[0])
    rest = words[1:words.index("--")] if "--" in words else words[1:]
    while isinstance(command, click.Group) and rest and (
            below := command.get_command(context, rest[0])):
        command, rest = below, rest[1:]
        context = click.Context(command, parent=context)
    if isinstance(command, click.Group) and command is cli:
        assert rest == [] or rest[0].startswith("-"), f"no such verb: {rest}"
    known = {name for p in command.get_params(context) for name in p.opts}
    assert {w.partition("=")[0] for w in rest if w.startswith("-")} - known - {"-"} == set()


def test_every_command_in_the_documents_is_understood(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    presets.save("vgg", presets.load("ddp").spec)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    broken = []
    for page, words in FOUND:
        if words[0] == "make":
            problem = None if words[1] in targets else f"there are {targets}"
        else:
            problem = _misread(words)
        if problem:
            broken.append(f"{page}: {' '.join(words)}: {problem}")
    assert not broken, "\n".join(broken)


def _misread(words: list[str]) -> str | None:
    """What is wrong with a command's words; None if the program would understand them."""
    try:
        given = parsed(words)[-1]
        if "sets" in given.params and (given.params.get("preset") or given.meta.get("command")):
            choose_spec(given.params.get("preset"), list(given.params["sets"]),
                        given.meta.get("command"))
    except (click.ClickException, UserError) as err:
        return str(err)
    return None


def _looks_only(words: list[str]) -> list[str]:
    """A `run` that starts nothing: a sweep's members are listed, another run is planned."""
    if misread := _misread(words):
        raise AssertionError(misread)
    if "--grid" in words:
        return ["gpu-engine", "plan", *words[2:]]
    out, rest = ["gpu-engine", "plan"], iter(words[2:])
    for word in rest:
        if word in ("--after", "--begin", "--priority"):
            next(rest)
        elif word == "--":
            return [*out, word, *rest]
        elif word not in ("--detach", "--json", "--queue"):
            out.append(word)
    return out
