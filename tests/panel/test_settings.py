"""What the panel makes of settings.toml, and of a light terminal."""

from __future__ import annotations

import os
import pty
import threading
from itertools import combinations
from math import dist
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.color import Color

from gpu_engine.settings.schema import PanelSettings, Settings
from gpu_panel import __main__ as opening
from gpu_panel import keys, theme, themed
from gpu_panel.app import PanelApp
from gpu_panel.charts.palette import dash_of
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.keys import KEYS, KeysError, remapped
from gpu_panel.terminal import background
from gpu_panel.terminal.background import by_answer, by_environment

from ..conftest import slots
from .colours import contrast


@pytest.fixture(autouse=True)
def _without(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


def app(light: bool = False, **panel) -> PanelApp:
    given = frozenset(f"panel.{name}" for name in panel)
    return PanelApp(inventory=slots(1), settings=Settings(PanelSettings(**panel), given=given),
                    light=light)


def test_of_two_choices_that_are_kept_at_once_none_is_lost(home: Path):
    other = threading.Thread(target=lambda: themed.keep("tell", lambda: False))

    def slow() -> str:
        other.start()
        other.join(0.1)  # it waits for its turn
        return "nord"

    themed.keep("theme", slow)
    other.join()
    assert themed.read() == {"theme": "nord", "tell": False}


def test_the_file_outranks_what_the_panel_remembers_and_that_the_terminal(
        home: Path, monkeypatch: pytest.MonkeyPatch):
    assert app().theme == "textual-dark"
    assert app(light=True).theme == "textual-light"
    themed.write({"theme": "nord", "tell": False})
    assert app(light=True).theme == "nord"
    assert not app().teller.on
    assert app(tell=True).teller.on
    assert app(theme="colour-blind").theme == "colour-blind"
    assert app(theme="auto", light=True).theme == "textual-light"
    assert app(theme="no-such-theme").theme == "textual-dark"
    assert [themed.is_chosen(own) for own in (None, "auto", "nord")] == [True, False, True]
    themed.write({})
    assert not themed.is_chosen(None)
    monkeypatch.setenv("TEXTUAL_THEME", "gruvbox")
    assert app(theme="nord").theme == PanelApp(inventory=slots(1)).theme


async def test_the_lowest_line_can_be_left_out(home: Path):
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
    ({"devices.tick": "a"}, "a is the key of devices.all (all/none) too"),
    ({"devices.tick": "ctrl+q"}, "ctrl+q is the key of quit"),
    ({"devices.tick": "hyper+q"}, "'hyper+q' is no key"), ({"devices.tick": ","}, "is no key"),
    ({"quit": "s"}, "of run.stop"), ({"log.find": "s"}, "of run.stop"),
    ({"devices.tick": "t", "devices.all": "t"}, "t is the key of")])
def test_keys_that_would_do_two_things_are_refused(wanted, said):
    with pytest.raises(KeysError) as err:
        remapped(KEYS, wanted)
    assert said in str(err.value)


def test_two_actions_may_change_places():
    table = remapped(KEYS, {"devices.tick": "a", "devices.all": "space"})
    assert (of(table, "devices.tick"), of(table, "devices.all")) == ("a", "space")


def test_the_same_key_on_another_screen_or_pane_is_no_conflict():
    for id in ("runs.order", "plan.copy"):
        remapped(KEYS, {id: of(KEYS, "run.maximize")})


def test_the_keys_as_they_ship_can_be_written_down():
    for key in KEYS:
        table = remapped(KEYS, {key.id: key.keys})
        assert table == KEYS
        shown = key.keys.split(",")[0]
        if shown != "comma":
            assert of(remapped(KEYS, {key.id: keys.display(shown)}), key.id) == shown


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


def test_a_real_terminal_is_asked(monkeypatch: pytest.MonkeyPatch):
    """A pseudo-terminal on whose other side somebody answers, or nobody does."""
    there, here = pty.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp())

    def answer() -> None:
        heard = b""
        while b"\x1b[c" not in heard:  # what is typed may be echoed before or after it
            heard += os.read(there, 100)
        os.write(there, b"4\x1b]11;rgb:ffff/ffff/eeee\x1b\\\r\x1b[?62;22c\xc3\xa9")

    background.typed()
    os.write(there, b"\x0c")  # before the program has begun, in a terminal that waits for a line
    thread = threading.Thread(target=answer)
    thread.start()
    assert background.ask(here, 60.0) is True
    thread.join()
    assert background.typed() == "\x0c4\ré"
    assert background.ask(here, 0.05) is None
    assert background.typed() == ""
    os.close(there)
    os.close(here)
    assert background.ask(here, 0.05) is None


# --- the themes for colour-blind people -----------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SEEN = {
    "everybody": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                   (0.004733, 0.691367, 0.303900))}


def lab(colour: Color, seen) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of a colour as somebody with `seen` sees it."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
              for v in colour.normalized]
    r, g, b = (min(max(sum(k * v for k, v in zip(row, linear, strict=True)), 0.0), 1.0)
               for row in seen)
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("chosen", theme.THEMES, ids=lambda t: t.name)
def test_the_themes_for_colour_blind_people(chosen):
    """As they are shown, after contrast was made sure of: texts are legible, and good, doubtful and
    bad look different to everybody. A distance of 20 is some ten times the least that is seen."""
    said = chosen.to_color_system().generate() | chosen.variables
    out = {name: Color.parse(value) for name, value in (
        said | theme.legible(said, dark=chosen.dark, ansi=False)).items()
        if name.startswith("text-") or name in ("foreground", "background", "surface", "panel",
                                                "cursor", "cursor-blurred")}
    grounds = [out[n] for n in ("background", "surface", "panel", "cursor", "cursor-blurred")]
    for text in ("foreground", "text-muted", "text-primary", "text-secondary", "text-success",
                 "text-warning", "text-error", "text-accent"):
        assert min(contrast(out[text], g) for g in grounds) >= 4.5, text
    for who, seen in SEEN.items():
        for one, other in combinations(("text-success", "text-warning", "text-error"), 2):
            assert dist(lab(out[one], seen), lab(out[other], seen)) >= 20, (who, one, other)


def test_every_rank_has_its_own_dashes_where_colours_are_not_to_be_relied_on():
    def dashes(name: str, *, no_color: bool = False) -> list[int]:
        return [dash_of(SimpleNamespace(theme=name, no_color=no_color), i) for i in range(9)]

    assert dashes("textual-dark") == [0] * 8 + [1]
    assert dashes("colour-blind") == dashes("colour-blind-light") == list(range(9))
    assert dashes("textual-dark", no_color=True) == list(range(9))


# --- opening the panel ----------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "said"), [
    ('[panel]\ntheme = "nrod"', 'panel.theme = "nrod": no such theme; did you mean nord?'),
    ('[keys]\nquit = "s"', "s is the key of run.stop (stop) too"),
    ('[keys]\nquit = "s"', "settings.toml: keys.quit"),
    ('[keys]\n[commands.a]\nrun = "ls"\nkey = "x"', 'settings.toml: commands.a.key = "x"'),
    ("[panel]\nmouse = 1", "panel.mouse = 1: expected true or false")])
def test_a_wrong_file_keeps_the_panel_from_opening_and_says_why(
        home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        text: str, said: str):
    home.mkdir()
    (home / "settings.toml").write_text(text)
    monkeypatch.setattr(opening, "_no_terminal", lambda: None)
    with pytest.raises(SystemExit) as ended:
        opening.main.main([], prog_name="gpu-panel")
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_all_actions_are_listed(home: Path, capsys: pytest.CaptureFixture[str]):
    opening.main.main(["--keys"], prog_name="gpu-panel")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] \
        == [key.id for key in KEYS]
