"""The command that is shown after an action does the same."""

from __future__ import annotations

import click
import pytest

from gpu_engine.cli import cli
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes
from gpu_panel.commands import same

from ... import odd_runs
from ...command_line import called


def read(words: list[str]) -> click.Context:
    """The command line as gpu-engine reads it; nothing is run."""
    context, command = click.Context(cli), cli
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, name
    return command.make_context(command.name, list(words))


class Told:
    """An app that only notes what it is to say."""

    def __init__(self):
        self.said: list[str] = []
        self.severity: object = None

    def notify(self, message: str, **more: object):
        self.said.append(message)
        self.severity = more["severity"]


@pytest.mark.parametrize(("before", "after"), [
    (Notes(), Notes("good", ("a", "b"), "why")), (Notes("x", ("a", "b"), "y"), Notes(None, ("b",))),
    (Notes(), Notes("-x", (), "-y --tag z")), (Notes("it's"), Notes("it's", ("new",)))])
def test_what_is_written_on_a_run(before, after):
    run = odd_runs.ended()
    notes.change(run.path, lambda now: before)
    out = called(*same.note(run.id, before, after))
    assert out.returncode == 0, out.stderr
    assert notes.read(run.path) == after


def test_at_most_three_are_shown_and_none_that_is_cut_or_would_draw():
    app = Told()
    same.done(app, "Done", [["stop", str(n)] for n in range(5)])
    assert app.said == ["Done\n$ gpu-engine stop 0\n$ gpu-engine stop 1\n$ gpu-engine stop 2\n"
                        "and 2 more such commands"]
    same.done(app, "Done", [["note", "3f2a", "x" * 200]])
    same.done(app, "Done", [["note", "3f2a", "a\x1b[2Jb"], ["note", "3f2a", "a\nb"]])
    same.done(app, "Done", [["note", str(n), "x" * 200] for n in range(5)])
    assert app.said[1:] == ["Done"] * 3


@pytest.mark.parametrize("words", [
    ["stop", "3f2a"], ["stop", "3f2a", "--now"], ["queue", "move", "3f2a", "first"],
    ["stacks", "3f2a", "--rank", "1"], ["trace", "3f2a"], ["runs", "prune", "--keep", "20"],
    ["sweep", "stop", "s1"], ["sweep", "retry", "s1"],
    ["resume", "3f2a", "--from", "best", "--set", "train.lr=1"]])
def test_every_other_one_is_read_by_the_command_line(words):
    assert read(words).params
