"""What the panel makes of settings.toml, and of a light terminal."""

from __future__ import annotations

import os
import pty
import threading

import pytest

from gpu_engine.settings.schema import PanelSettings, Settings
from gpu_panel import __main__ as opening
from gpu_panel import theme
from gpu_panel.app import PanelApp
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.keys import KEYS, KeysError, remapped
from gpu_panel.terminal import background
from gpu_panel.terminal.background import by_answer, by_environment

from ..conftest import slots


@pytest.fixture(autouse=True)
def _without(monkeypatch):
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


def app(light=False, **panel) -> PanelApp:
    given = frozenset(f"panel.{name}" for name in panel)
    return PanelApp(inventory=slots(1), settings=Settings(PanelSettings(**panel), given=given),
                    light=light)


def test_the_file_outranks_what_the_panel_remembers_and_that_the_terminal(monkeypatch):
    assert app().theme == "textual-dark"
    assert app(light=True).theme == "textual-light"
    theme.write({"theme": "nord", "tell": False})
    assert app(light=True).theme == "nord"
    assert not app().teller.on
    assert app(tell=True).teller.on
    assert app(theme="colour-blind").theme == "colour-blind"
    assert app(theme="auto", light=True).theme == "textual-light"
    assert app(theme="no-such-theme").theme == "textual-dark"
    assert [theme.is_chosen(own) for own in (None, "auto", "nord")] == [True, False, True]
    theme.write({})
    assert not theme.is_chosen(None)
    monkeypatch.setenv("TEXTUAL_THEME", "gruvbox")
    assert app(theme="nord").theme == PanelApp(inventory=slots(1)).theme


async def test_the_lowest_line_can_be_left_out():
    found = app(footer=False, preset="single", confirm_quit=False)
    async with found.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert not found.screen.query_one(KeyBar).display
        assert found.devices._interval == 1.0
        while not found.screen.draft.preset:
            await pilot.pause(0.01)
        assert found.screen.draft.preset.name == "single"


# --- keys -----------------------------------------------------------------------------------------

def of(table, id: str) -> str:
    return next(k.keys for k in table if k.id == id)


def test_keys_are_remapped_by_name():
    table = remapped(KEYS, {"devices.tick": "t", "run.stop": "ctrl+x, @", "chart.zoom-in": "]"}
                     | {"log.next": "f6"})
    assert of(table, "devices.tick") == "t"
    assert of(table, "run.stop") == "ctrl+x,at"
    assert of(table, "chart.zoom-in") == "right_square_bracket"
    assert of(table, "devices.all") == of(KEYS, "devices.all")
    assert remapped(KEYS, {}) == KEYS


@pytest.mark.parametrize(("wanted", "said"), [
    ({"devices.tikc": "t"}, "no such action; did you mean devices.tick?"),
    ({"sweep.back": "q"}, "it is called several.back now"),
    ({"devices.tick": "a"}, "a is the key of devices.all (all free) too"),
    ({"devices.tick": "ctrl+q"}, "ctrl+q is the key of quit"),
    ({"devices.tick": "hyper+q"}, "that is no key"), ({"devices.tick": ","}, "is no key"),
    ({"quit": "s"}, "of run.stop"), ({"log.find": "s"}, "of run.stop"),
    ({"devices.tick": "t", "devices.all": "t"}, "t is the key of")])
def test_keys_that_would_do_two_things_are_refused(wanted, said):
    with pytest.raises(KeysError) as err:
        remapped(KEYS, wanted)
    assert said in str(err.value)


# --- the terminal's background --------------------------------------------------------------------

@pytest.mark.parametrize(("value", "light"), [
    ("0;15", True), ("15;0", False), ("15;default;0", False), ("0;7", True), ("0;8", False),
    ("0;default", None), ("", None), ("0;77", None)])
def test_colorfgbg(value, light):
    assert by_environment({"COLORFGBG": value}) is light


@pytest.mark.parametrize(("answer", "light"), [
    ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\", True), ("\x1b]11;rgb:00/00/00\x07", False),
    ("\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\\x1b[?1;2c", True), ("\x1b[?1;2c", None),
    ("\x1b]11;rgb:0000/0000/ffff\x07", False), ("\x1b]11;rgba:ff/ff/ff/80\x07", True)])
def test_what_a_terminal_answers(answer, light):
    assert by_answer(answer) is light


def test_a_real_terminal_is_asked(monkeypatch):
    """A pseudo-terminal on whose other side somebody answers, or nobody does."""
    there, here = pty.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())

    def answer():
        heard = b""
        while b"\x1b[c" not in heard:  # what is typed may be echoed before or after it
            heard += os.read(there, 100)
        os.write(there, b"4\x1b]11;rgb:ffff/ffff/eeee\x1b\\\r\x1b[?62;22c\xc3\xa9")

    thread = threading.Thread(target=answer)
    thread.start()
    assert background.ask(here, 60.0) is True
    thread.join()
    assert background.ask(here, 0.05) is None
    os.close(there)
    os.close(here)
    assert background.ask(here, 0.05) is None


# --- opening the panel ----------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "said"), [
    ('[panel]\ntheme = "nrod"', 'panel.theme = "nrod": no such theme; did you mean nord?'),
    ('[keys]\nquit = "s"', "s is the key of run.stop (stop) too"),
    ('[keys]\nquit = "s"', "settings.toml: keys.quit"),
    ('[keys]\n[commands.a]\nrun = "ls"\nkey = "x"', 'settings.toml: commands.a.key = "x"'),
    ("[panel]\nmouse = 1", "panel.mouse = 1: expected true or false")])
def test_a_wrong_file_keeps_the_panel_from_opening_and_says_why(
        home, monkeypatch, capsys, text, said):
    home.mkdir()
    (home / "settings.toml").write_text(text)
    monkeypatch.setattr(opening, "_no_terminal", lambda: None)
    with pytest.raises(SystemExit) as ended:
        opening.main.main([], prog_name="gpu-panel")
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_all_actions_are_listed(capsys):
    opening.main.main(["--keys"], prog_name="gpu-panel")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] \
        == [key.id for key in KEYS]
