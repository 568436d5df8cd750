"""A log in the person's pager or editor, and saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_panel.commands import terminal
from gpu_panel.run.log import elsewhere
from gpu_panel.run.log.file import LogFile, TextLines
from gpu_panel.run.log.pane import LogPane

from ...panel_kit import screen_text, until
from ...run_kit import Mini, settled, trained
from .test_view import HOSTILE, harmful


@pytest.mark.parametrize(("kind", "env", "there", "wanted"), [
    ("pager", {"PAGER": "less -S"}, [], ["less", "-S", "+7"]),
    ("pager", {"PAGER": "bat --plain"}, [], ["bat", "--plain"]),
    ("pager", {"PAGER": " "}, ["more"], ["more"]), ("pager", {}, ["less", "more"], ["less", "+7"]),
    ("editor", {"EDITOR": "/usr/bin/vim"}, [], ["/usr/bin/vim", "+7"]),
    ("editor", {"EDITOR": "ed", "VISUAL": "code -w"}, [], ["code", "-w"]),
    ("editor", {"EDITOR": "x 'y"}, [], "$EDITOR is \"x 'y\": No closing quotation"),
    ("editor", {}, [], "there is no vi or nano; name your editor in $EDITOR")])
def test_which_program(monkeypatch: pytest.MonkeyPatch, kind, env, there, wanted):
    for name in ("PAGER", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(elsewhere.shutil, "which", lambda name: name if name in there else None)
    if isinstance(wanted, str):
        with pytest.raises(UserError) as err:
            elsewhere.program(kind, 7)
        assert str(err.value) == wanted
    else:
        assert elsewhere.program(kind, 7) == wanted


def test_a_file_has_what_the_view_shows_and_replaces_nothing(tmp_path: Path):
    (tmp_path / "a.log").write_bytes(HOSTILE)
    lines = LogFile(tmp_path / "a.log", "rank 0/../x")
    while lines.update():
        pass
    with elsewhere.as_file(lines) as path:
        text = path.read_text()
        assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0
        assert path.name == "rank-0-..-x.log"
    assert not path.parent.exists()
    assert not harmful(text)
    assert text.splitlines() == [lines.line(i) for i in range(len(lines))]
    with pytest.raises(UserError, match="is there already"):
        elsewhere.save(TextLines("x", "new"), tmp_path / "a.log")
    assert (tmp_path / "a.log").read_bytes() == HOSTILE


async def test_keys_open_and_save_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = trained(tmp_path)
    run.log(0, b"one\ntwo\x1b[31m\nthree\n")
    opened = []
    monkeypatch.setattr(terminal, "in_terminal", lambda app, argv: opened.append(
        (argv[:-1], Path(argv[-1]).read_text())))
    monkeypatch.setenv("PAGER", "less")
    monkeypatch.setenv("EDITOR", "vi")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=(160, 48)) as pilot:
        await settled(pilot)
        view = app.screen.query_one(LogPane)._view
        await until(pilot, lambda: view.lines is not None and len(view.lines) == 53)
        await pilot.press("v")
        await until(pilot, lambda: opened)
        await pilot.press("V")
        await until(pilot, lambda: len(opened) == 2)
        assert [argv[0] for argv, _ in opened] == ["less", "vi"]
        assert all(text.endswith("49\none\ntwo\nthree\n") for _, text in opened)
        assert opened[0][0] == ["less", "+7"], "47 lines fit above the prompt"
        await pilot.press("S")
        await until(pilot, lambda: "3f2a-rank-0.log" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: (tmp_path / "3f2a-rank-0.log").exists())


async def test_a_terminal_that_can_not_be_lent_is_said(tmp_path: Path):
    run = trained(tmp_path)
    run.log(0, b"one\n")
    app = Mini(run.run)
    async with app.run_test(size=(160, 48)) as pilot:
        await settled(pilot)
        view = app.screen.query_one(LogPane)._view
        await until(pilot, lambda: view.lines is not None and len(view.lines) == 51)
        await pilot.press("v")
        await until(pilot, lambda: "can't give this terminal" in screen_text(app))
