"""The person's own commands: their keys, what is put into them, where they run."""

from __future__ import annotations

import os

import click
import pytest
from textual.binding import Binding
from textual.geometry import Size
from textual.widgets import RichLog, Static

from gpu_engine.cli import cli
from gpu_engine.common import paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes
from gpu_engine.settings.schema import OwnCommand, Settings
from gpu_panel import keys, readonly
from gpu_panel.app import PanelApp
from gpu_panel.commands import own, same
from gpu_panel.commands.own import OutputScreen
from gpu_panel.common.dialogs import Confirm, Message
from gpu_panel.common.help import HelpScreen

from ... import odd_runs
from ...command_line import called
from ...conftest import slots
from ..panel_kit import screen_text, until
from ..run_kit import listed, on_top, says, trained


def command(line: str, **more) -> OwnCommand:
    return OwnCommand("say", "f9", line, **more)


@pytest.fixture
def made(monkeypatch):
    """An app with one run and one command on f9."""
    listed("completed")

    def make(found: OwnCommand) -> PanelApp:
        table = keys.with_commands(keys.KEYS, [found])
        monkeypatch.setattr(keys, "KEYS", table)
        app = PanelApp(inventory=slots(1), settings=Settings(commands=(found,)))
        for binding in keys.bindings(keys.of("own")):
            assert isinstance(binding, Binding)
            app.bind(binding.key, binding.action, description=binding.description)
        return app

    return make


@pytest.mark.parametrize(("key", "said"), [
    ("o", "commands.a.key = \"o\": o is the key of runs.order (sort)"),
    ("ctrl+q", "is the key of quit"), ("f8", "is the key of tell"), ("3", "goes to a pane"),
    ("f3", "goes to a pane"), ("hyper+x", "that is no key"), ("enter", "is the key of")])
def test_a_key_of_ours_is_refused_by_its_name(key, said):
    with pytest.raises(keys.KeysError) as err:
        keys.with_commands(keys.KEYS, [OwnCommand("a", key, "x")])
    assert said in str(err.value)


def test_two_commands_have_two_keys():
    with pytest.raises(keys.KeysError, match=r"f9 is the key of commands\.a \(a\)"):
        keys.with_commands(keys.KEYS, [OwnCommand(name, "f9", "x") for name in "ab"])


async def test_its_output_is_shown_with_what_is_under_the_cursor(made):
    app = made(command("echo said $GPU_PANEL_RUN_ID $GPU_PANEL_RUN_DIR $GPU_PANEL_HOST"))
    async with app.run_test(size=(160, 48)) as pilot:
        screen = app.screen_stack[0]
        await until(pilot, lambda: screen.runs.line_at_cursor)
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen)
                    and any(log.lines for log in app.screen.query(RichLog)))
        said = " ".join(strip.text.strip() for strip in app.screen.query_one(RichLog).lines)
        wanted = f"said 3f2a {paths.runs_folder() / '3f2a'} {os.uname().nodename}"
        assert said.replace(" ", "") == wanted.replace(" ", "")
        await pilot.press("escape", "question_mark")
        await on_top(pilot, HelpScreen)
        await until(pilot, lambda: "Your own commands" in str(app.screen.query_one(Static).content))


async def test_what_it_prints_is_text_and_closing_ends_it_and_what_it_has_started(made):
    app = made(command("sleep 1000 & echo $!; printf '\\033]52;c;aGk=\\007[b]x\\n'; wait"))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, OutputScreen)
                    and any(log.lines for log in app.screen.query(RichLog)))
        shown = app.screen
        await says(pilot, "[b]x")
        assert "\x1b" not in screen_text(app)
        child = int(app.screen.query_one(RichLog).lines[0].text)
        ticks = procs.start_ticks(child)
        assert procs.alive(child, ticks)
        await pilot.press("escape")
        assert await shown.process.wait() < 0
        await until(pilot, lambda: not procs.alive(child, ticks))


async def test_what_it_prints_continues_on_the_next_row(made):
    words = " ".join(f"word{i}" for i in range(60))
    app = made(command(f"echo '{words}'; echo {'x' * 99}end"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f9")
        await until(pilot, lambda: "word59" in screen_text(app) and "end" in screen_text(app))
        await pilot.press("y")
        assert app.clipboard == f"{words}\n{'x' * 99}end"


async def test_a_dangerous_one_is_asked_for(made):
    app = made(command("echo $GPU_PANEL_RUN_ID", confirm=True, help="Says it"))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.screen_stack[0].runs.line_at_cursor)
        await pilot.press("f9")
        await on_top(pilot, Confirm)
        assert "3f2a" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("f9")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await on_top(pilot, OutputScreen)


async def test_what_it_is_told_is_no_part_of_its_line_and_a_pid_elsewhere_none_of_ours(
        made, tmp_path):
    hostile = "a b; $(id) 'x"
    found = command(f'cd {tmp_path}; printf %s "$GPU_PANEL_HOST" > t; mv t said',
                    where="background")
    app = made(found)
    async with app.run_test(size=(160, 48)) as pilot:
        app.screen.placeholders = lambda: own.of_process(None, hostile)
        await own.run(app, found)
        await until(pilot, (tmp_path / "said").exists)
        app.screen.placeholders = lambda: own.of_process(7, "far")
        with pytest.raises(UserError, match=r"this process is on far"):
            await own.run(app, command("kill $GPU_PANEL_PID"))
    assert (tmp_path / "said").read_text() == hostile


async def test_it_is_refused_where_there_is_nothing_for_it(made, monkeypatch):
    app = made(command("kill $GPU_PANEL_PID", where="background"))
    async with app.run_test(size=(160, 48), notifications=True) as pilot:
        await until(pilot, lambda: app.screen_stack[0].runs.line_at_cursor)
        with monkeypatch.context() as patch:
            patch.setattr(readonly, "on", True)
            await pilot.press("f9")
            await says(pilot, "--readonly")
        await pilot.press("f9")
        await on_top(pilot, Message, "say needs $GPU_PANEL_PID")


def test_a_folders_word_for_a_pid_is_not_enough(tmp_path):
    """Live by its lock, and its state names a process that has nothing to do with it."""
    run = trained(tmp_path)
    run.state("running", pid=os.getppid())
    assert run.run.state().pid == os.getppid()
    assert own.of_run(run.run)["GPU_PANEL_PID"] is None
    assert own.of_run(run.run, 0)["GPU_PANEL_PID"] is None


# --- The command that is shown after an action does the same ---


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

    def __init__(self, *size: int):
        self.said: list[str] = []
        self.size = Size(*size)
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
    app = Told(160, 48)
    same.done(app, "Done", [["stop", str(n)] for n in range(5)])
    assert app.said == ["Done\n$ gpu-engine stop 0\n$ gpu-engine stop 1\n$ gpu-engine stop 2\n"
                        "and 2 more such commands"]
    same.done(app, "Done", [["note", "3f2a", "x" * 300]])
    same.done(app, "Done", [["note", "3f2a", "a\x1b[2Jb"], ["note", "3f2a", "a\nb"]])
    same.done(app, "Done", [["note", str(n), "x" * 300] for n in range(5)])
    assert app.said[1:] == ["Done"] * 3
    small = Told(80, 24)  # where three lines are seen
    same.done(small, "Done", [["stop", str(n)] for n in range(5)])
    same.done(small, "Done", [["note", "3f2a", "x" * 150]])
    same.done(small, "Done", [["note", "3f2a", "x" * 100]])
    assert [said.count("\n") for said in small.said] == [2, 0, 1]


@pytest.mark.parametrize("words", [
    ["stop", "3f2a"], ["stop", "3f2a", "--now"], ["queue", "move", "3f2a", "first"],
    ["stacks", "3f2a", "--rank", "1"], ["trace", "3f2a"], ["runs", "prune", "--keep", "20"],
    ["sweep", "stop", "s1"], ["sweep", "retry", "s1"],
    ["resume", "3f2a", "--from", "best", "--set", "train.lr=1"]])
def test_every_other_one_is_read_by_the_command_line(words):
    assert read(words).params
