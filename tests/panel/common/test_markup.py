"""Names and messages from files are shown as they are: what looks like Textual's markup, which can
name actions to be run at a click, is text."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Button

from gpu_engine.runs.state import Cause
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import Confirm, Message
from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.screen import RunScreen

from ... import odd_runs
from ...conftest import slots
from ..panel_kit import panel, says, screen_text, until

NAME = "[@click=app.quit]x[/]"
PANEL = Path(__file__).parents[3] / "tui" / "gpu_panel"


def read_as_markup(text: str) -> list[str]:
    """Where a text that is made of others goes to a place that reads markup."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keys = {k.arg: k.value for k in node.keywords}
            first = node.args[0] if node.args else keys.get("label")
            plain = isinstance(keys.get("markup"), ast.Constant)
            if name in ("notify", "Static", "Label", "Button", "Option", "update") and not plain \
                    and isinstance(first, (ast.JoinedStr, ast.BinOp)):
                found.append(f"{node.lineno}: {name}")
            if name == "from_markup":
                found.append(f"{node.lineno}: {name}")
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.JoinedStr, ast.BinOp)):
            found += [f"{node.lineno}: {t.attr}" for t in node.targets
                      if isinstance(t, ast.Attribute) and t.attr in (
                          "border_title", "border_subtitle", "tooltip", "label")]
    return found


def test_no_text_made_of_others_is_read_as_markup():
    found = {str(f.relative_to(PANEL)): told for f in PANEL.rglob("*.py")
             if (told := read_as_markup(f.read_text()))}
    assert found == {}


@pytest.mark.parametrize("line", [
    'self.notify(f"{x}")', 'Static(f"{x} y")', 'Button("Load " + x)', 'box.border_title = f"{x}"',
    'Content.from_markup(x)', 'place.update(f"{x}")'])
def test_such_a_text_is_seen(line):
    assert read_as_markup(line)


async def test_a_run_whose_name_is_markup():
    run = odd_runs.ended("failed")
    run.write_state(replace(run.state(), name=NAME, reason=NAME,
                            cause=Cause(NAME, 0, NAME, NAME)))
    async with panel(slots(1), size=(160, 60)) as (pilot, screen):
        table = screen.query_one(RunsPane)
        await says(pilot, NAME[:16])
        await pilot.press("escape", "4")
        await until(pilot, lambda: table.has_focus)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen)
                    and NAME in screen_text(pilot.app))
        await pilot.press("i")
        await until(pilot, lambda: pilot.app.screen.__class__.__name__ == "AboutRun")
        assert NAME in screen_text(pilot.app)
        await pilot.press("escape")
        pilot.app.push_screen(Message(NAME, NAME))
        await until(pilot, lambda: screen_text(pilot.app).count(NAME) >= 2)
        await pilot.press("escape")
        pilot.app.push_screen(Confirm(NAME, NAME, yes=f"Load {NAME}", no=NAME))
        await until(pilot, lambda: screen_text(pilot.app).count(NAME) >= 4)
        assert isinstance(pilot.app.screen, Confirm)
        assert not pilot.app.screen.query_one("#yes", Button).label.spans


async def test_what_is_copied_is_harmless_where_it_is_pasted(home):
    async with panel(slots(1)) as (pilot, _):
        copy(pilot.app, "a\x1b]52;c;QQ==\x07\n| b\x1b[201~rm |\x9b2J\u202e")
        assert pilot.app.clipboard == "a\n| brm |"
        assert (home / "copied.txt").read_text() == "a\n| brm |\n"
