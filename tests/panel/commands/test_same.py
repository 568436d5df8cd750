"""The command that is shown after an action does the same."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from gpu_engine.cli import cli
from gpu_engine.common import paths
from gpu_engine.plan.build import arguments
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes
from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_panel.commands import same
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.queueing import Wish
from gpu_panel.launch.run_actions import TagsDialog

from ... import odd_runs
from ...command_line import called
from ...conftest import slots
from ..panel_kit import panel, until

pytestmark = pytest.mark.usefixtures("home")


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

    def __init__(self) -> None:
        self.said: list[str] = []
        self.severity: object = None

    def notify(self, message: str, **more: object) -> None:
        self.said.append(message)
        self.severity = more["severity"]


@pytest.mark.parametrize(("before", "after"), [
    (Notes(), Notes("good", ("a", "b"), "why")), (Notes("x", ("a", "b"), "y"), Notes(None, ("b",))),
    (Notes(), Notes("-x", (), "-y --tag z")), (Notes("it's"), Notes("it's", ("new",)))])
def test_what_is_written_on_a_run(before: Notes, after: Notes):
    run = odd_runs.ended()
    notes.change(run.path, lambda now: before)
    out = called(*same.note(run.id, before, after))
    assert out.returncode == 0, out.stderr
    assert notes.read(run.path) == after


@pytest.mark.parametrize("wish", [
    Wish(), Wish(after="3f2a", begin="22:00", priority="-3", free_for="2.5"),
    Wish(vary="train.lr=1e-3,3e-4 batch.size=8,16", repeat="2"), Wish(begin="+90m", repeat="1")])
@pytest.mark.parametrize("spec", [
    presets.load("default").spec,
    from_dict({"task": {"command": ["python", "a b.py", "--lr={lr}"]}, "train": {"lr": 0.5}})])
def test_what_waits_in_the_queue(wish: Wish, spec):
    found = read(["run", *arguments(spec, None), *wish.words()]).params
    assert found["queued"]
    assert found["after"] == (wish.after or None)
    assert found["begin"] == (wish.begin or None)
    assert found["priority"] == (int(wish.priority) if wish.priority else None)
    assert found["free_for"] == (float(wish.free_for) if wish.free_for else None)
    assert found["grid"] == tuple(wish.vary.split())
    assert found["repeat"] == int(wish.repeat or 1)


def test_at_most_three_are_shown_and_none_that_is_cut_or_would_draw():
    app = Told()
    same.done(app, "Done", [["stop", str(n)] for n in range(5)])
    assert app.said == ["Done\n$ gpu-engine stop 0\n$ gpu-engine stop 1\n$ gpu-engine stop 2\n"
                        "and 2 more such commands"]
    same.done(app, "Done", [["note", "3f2a", "x" * 200]])
    same.done(app, "Done", [["note", "3f2a", "a\x1b[2Jb"], ["note", "3f2a", "a\nb"]])
    same.done(app, "Done", [["note", str(n), "x" * 200] for n in range(5)])
    assert app.said[1:] == ["Done"] * 3


def test_what_went_wrong_stands_before_the_commands():
    app = Told()
    same.done(app, "1 run stopped", [["stop", "3f2a"]])
    assert app.severity == "information"
    same.done(app, "1 run stopped", [["stop", "3f2a"]], trouble=["run 4b3c is gone"])
    assert app.said[-1] == "1 run stopped\nrun 4b3c is gone\n$ gpu-engine stop 3f2a"
    assert app.severity == "warning"


async def test_actions_say_theirs(home: Path):
    one, two = odd_runs.ended(age=1), odd_runs.ended(age=2)
    async with panel(slots(1), notifications=True) as (pilot, screen):
        await until(pilot, lambda: len(screen.runs.lines or ()) == 2)

        async def said(text: str) -> list[str]:
            """The words of the command that the last notice shows."""
            await until(pilot, lambda: any(text in n.message for n in pilot.app._notifications))
            last = [n.message for n in pilot.app._notifications if text in n.message][-1]
            pilot.app.clear_notifications()
            return shlex.split(last.partition("\n$ ")[2])

        screen.runs.focus()
        await pilot.press("t")
        await until(pilot, lambda: isinstance(pilot.app.screen, TagsDialog))
        await pilot.press(*"lr", "enter")
        assert await said("Written on run") == ["gpu-engine", "note", one.id, "--tag", "lr"]
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("y")
        words = await said("was removed")
        assert words == ["gpu-engine", "runs", "rm", one.id]
        assert read(words[1:]).params["run"] == (one.id,)
        await until(pilot, lambda: len(screen.runs.lines or ()) == 1)
        three = odd_runs.ended(age=3)
        await until(pilot, lambda: len(screen.runs.lines or ()) == 2)
        await pilot.press("M", "x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("y")
        words = await said("2 runs were removed")
        assert set(read(words[1:]).params["run"]) == {two.id, three.id}
    assert not list(paths.runs_folder().iterdir())


@pytest.mark.parametrize("words", [
    ["stop", "3f2a"], ["stop", "3f2a", "--now"], ["queue", "move", "3f2a", "first"],
    ["stacks", "3f2a", "--rank", "1"], ["trace", "3f2a"], ["runs", "prune", "--keep", "20"],
    ["sweep", "stop", "s1"], ["sweep", "retry", "s1"],
    ["resume", "3f2a", "--from", "best", "--set", "train.lr=1"]])
def test_every_other_one_is_read_by_the_command_line(words: list[str]):
    assert read(words).params
