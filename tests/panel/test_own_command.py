"""`gpu-panel -- python train.py …`: a person's own script, from the command line to its end."""

import shlex
import sys

import pytest
from click.testing import CliRunner
from textual.events import Paste
from textual.widgets import Button, Input, Static

from gpu_engine.plan.own_command import PLACEHOLDERS
from gpu_engine.runs import folder as runs
from gpu_panel.__main__ import main
from gpu_panel.launch.draft import Draft

from ..conftest import gpus, slots
from .panel_kit import panel, problems_below, says, settled, type_into, until

SCRIPT = """
import os, pathlib, sys
rank = os.environ["RANK"]
pathlib.Path(sys.argv[1], rank).write_text(" ".join(sys.argv[2:]))
print("I am", rank)
"""


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    """The folder in which the panel is opened has these scripts."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("train.py", "x.py"):
        (tmp_path / "here" / name).touch()


@pytest.fixture
def script(tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "tiny.py"
    path.write_text(SCRIPT)
    return path


async def test_the_command_stands_in_the_form():
    command = ("python", "train.py", "--lr", "{lr}", "--note", "two words")
    async with panel(gpus(2), command=command) as (pilot, screen):
        assert screen.query_one("#f-task-command", Input).value == \
            "python train.py --lr {lr} --note 'two words'"
        assert screen.draft.value("name") == "train"
        assert screen.form.border_title == "Launch ─ your own train"
        assert screen.draft.ids == ["0"]
        assert screen.review.problems == ()
        assert "python train.py --lr 0.0003 --note 'two words'" in screen.review.plan.lines[-1]
        screen.bring_forward("form")
        screen.query_one("#f-task-command").focus()
        await settled(pilot, screen)
        told = str(screen.query_one("#field-help", Static).content)
        assert all("{" + name + "}" in told for name in PLACEHOLDERS)


async def test_an_open_quote_is_said_to_be_one_and_several_lines_can_be_pasted():
    async with panel(slots(1), command=("python", "train.py")) as (pilot, screen):
        screen.bring_forward("form")
        box = screen.query_one("#f-task-command", Input)
        for typed, said in (
                ('python train.py --name "two words', 'the quote " is not closed'),
                ("python train.py it\\", "ends in a backslash with nothing after it"),
                ("python train.py | tee log", "sh -c 'python train.py | tee log'")):
            box.value = typed
            await until(pilot, lambda said=said: any(
                said in line for line in problems_below(screen)))
            assert screen.query_one("#launch", Button).disabled
            assert str(screen.query_one("#plan-text", Static).content) == "✗ see the form: command"
            assert box.value == typed
        for pasted, shown in (
                ("python train.py \\\n    --lr 1 \\\r  --y \\\r\n  --x 2\n",
                 "python train.py  --lr 1  --y  --x 2"),
                ("python train.py " + "--option " * 1400, "python train.py" + " --option" * 1400)):
            box.value = ""
            box.focus()
            await settled(pilot, screen)
            box.post_message(Paste(pasted))
            await until(pilot, lambda shown=shown: box.value == shown)
            await settled(pilot, screen)
            assert screen.draft.value("task.command") == shown.split()


@pytest.mark.parametrize("text", [
    "python train.py --bs {batch.per_gpu}", "a 'b c' \"d'e\"", "x {{a}} '{a,b}' $HOME '*'", "''",
])
def test_what_is_shown_reads_back_as_it_was(text):
    draft = Draft()
    draft.put("task.command", text)
    assert shlex.split(draft.text("task.command")) == shlex.split(text)


def test_the_command_line_hands_it_on(monkeypatch):
    seen = {}

    class App:
        return_code = 0
        available_themes = ()

        def __init__(self, preset, *, sets, command, **more):
            seen.update(preset=preset, sets=sets, command=command)

        def run(self, **more):
            pass

    monkeypatch.setattr("gpu_panel.app.PanelApp", App)
    monkeypatch.setattr("gpu_panel.__main__._no_terminal", lambda: None)
    done = CliRunner().invoke(main, ["ddp", "--set", "batch.size=8", "--", "python", "x.py",
                                     "--set", "--help"])
    assert done.exit_code == 0, done.output
    assert seen == {"preset": "ddp", "sets": ("batch.size=8",),
                    "command": ["python", "x.py", "--set", "--help"]}
    CliRunner().invoke(main, [])
    assert seen["command"] is None


async def test_ticks_launch_and_the_preview(script):
    out = script.parent / "out"
    command = (sys.executable, str(script), str(out), "{batch.per_gpu}", "{world_size}")
    async with panel(slots(2), command=command) as (pilot, screen):
        await pilot.press("down", "space")
        screen.query_one("#f-parallel-mode").choose("ddp")
        await type_into(pilot, screen, "f-batch-size", "6")
        assert screen.review.problems == ()
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.runs.line_at_cursor and screen.focused is screen.runs)
        (run,) = runs.all_runs()
        assert run.state().name == "tiny"
        await until(pilot, lambda: not run.state().live, 60)
        assert run.state().state == "completed", run.state()
        await says(pilot, "I am")
    ranks = {path.name: path.read_text() for path in out.iterdir()}
    assert ranks == {"0": "3 2", "1": "3 2"}
