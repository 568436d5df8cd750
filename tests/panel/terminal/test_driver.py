"""Characters for terminals that have only ASCII, and whatever a terminal sends."""


import ast
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver

from gpu_panel import textual_private
from gpu_panel.terminal.driver import ascii_only, wants_ascii
from gpu_panel.terminal.notice import kind, notice

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("golden", sorted((Path(__file__).parents[1] / "goldens").glob("*.txt")),
                         ids=lambda p: p.stem)
def test_every_screen_keeps_its_shape_and_loses_nothing(golden):
    for line in golden.read_text().splitlines():
        plain = ascii_only(line)
        assert plain.isascii()
        assert cell_len(line) == len(plain), line
        assert plain.count("?") == line.count("?"), line


READ = "\uff1d\uff0b\uff0d\uff20"
"""Never shown: a cell of a CSV must not begin with them."""


def test_every_character_of_the_program_has_one():
    files = [f for room in ("tui", "engine") for f in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    for file in files:
        if file.name == "output.py":  # the command line has a table of its own
            continue
        tree = ast.parse(file.read_text())
        told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) \
                    and id(node) not in told:
                lost = [c for c in node.value if c != "?" and unicodedata.category(c)[0] in "SP"
                        and "?" in ascii_only(c) and c not in READ]
                assert not lost, (file.name, node.lineno, lost)


def test_dots_are_where_they_were():
    assert ascii_only("⠉⣀⣿⡇⠁⠀─│") == "'.#:' -|"
    assert ascii_only("日x") == "??x"


@pytest.mark.parametrize(("env", "plain"), [
    ({}, False), ({"LANG": "C"}, True), ({"LANG": "de_DE.UTF-8"}, False),
    ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # what Python makes of LANG=C
    ({"LC_CTYPE": "C.UTF-8"}, False), ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
    ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True), ({"LANG": "de_DE.ISO-8859-1"}, True),
    ({"LANG": "de_DE.utf8@euro"}, False), ({"TERM": "linux", "LANG": "en_US.UTF-8"}, True),
    ({"LANG": "C", "GPU_PANEL_ASCII": "0"}, False), ({"GPU_PANEL_ASCII": "1"}, True)])
def test_when_it_is_wanted(env, plain):
    assert wants_ascii(env) is plain


# --- Which sequence a terminal is sent for a notification, and that nothing in it is obeyed ---


XTERM = {"TERM": "xterm-256color"}


@pytest.mark.parametrize(("env", "wanted"), [
    (XTERM, "9"),
    (XTERM | {"TERM_PROGRAM": "iTerm.app"}, "9"),
    (XTERM | {"LC_TERMINAL": "iTerm2"}, "9"),
    ({"TERM": "xterm-kitty"}, "777"),
    ({"TERM": "xterm-ghostty"}, "777"),
    (XTERM | {"TERM_PROGRAM": "WezTerm"}, "777"),
    ({"TERM": "foot"}, "777"),
    ({"TERM": "rxvt-unicode-256color"}, "777"),
    (XTERM | {"KONSOLE_VERSION": "220401"}, "777"),
    (XTERM | {"VTE_VERSION": "7600"}, "777"),
    ({"TERM": "alacritty"}, None),
    ({"TERM": "linux"}, None),
    ({"TERM": "dumb"}, None),
    ({"TERM": "screen", "STY": "1.x"}, None),
    ({}, None),
    ({"TERM": "tmux-256color", "TMUX": "/tmp/x"}, "9"),
    ({"TERM": "tmux-256color", "TMUX": "/tmp/x", "TERM_PROGRAM": "tmux", "KITTY_WINDOW_ID": "1"},
     "777")])
def test_each_terminal_gets_the_one_it_knows(env, wanted):
    assert kind(env) == wanted


def test_what_is_sent():
    assert notice({"TERM": "linux"}, "a", "b") == "\a"
    assert notice(XTERM, "a", "b") == "\a\x1b]9;gpu-panel: b\a"
    assert notice({"TERM": "foot"}, "a;1", "b;2") == "\a\x1b]777;notify;a,1;b,2\a"
    assert notice({"TERM": "tmux", "TMUX": "x"}, "a", "b") == \
        "\a\x1bPtmux;\x1b\x1b]9;gpu-panel: b\a\x1b\\"


@given(st.text(), st.text(max_size=2000), st.sampled_from(["foot", "xterm"]))
def test_no_title_and_no_text_can_end_the_sequence_or_begin_another(title, text, term):
    sent = notice({"TERM": term}, title, text)
    assert re.fullmatch("\a\x1b\\](777;notify;[^;\x00-\x1f\x7f-\x9f]{0,80};|9;gpu-panel: )"
                        "[^;\x00-\x1f\x7f-\x9f]{0,240}\a", sent)


NUMBERS = st.sampled_from(["", "0", "1", "9", "97", "97:65", "2:1", "1:2", "1:3", "55296", "57414",
                           "1114112", "99999999999999999999", "48", "-3", "?2026", "<0", "<64"])
SENT = st.lists(st.one_of(
    st.builds(lambda parts, end: b"\x1b[" + ";".join(parts).encode() + end.encode(),
              st.lists(NUMBERS, max_size=6), st.sampled_from("u~ABHPRSMmtyIO$")),
    st.sampled_from([b"\x1b", b"\x1b[", b"\x1b[200~", b"\x1b[201~", b"\x1bO", b"\x1b[M", b"\xff"]),
    st.binary(max_size=5)), max_size=12).map(b"".join)


def events_of(made, decode, sent):
    out = []
    for start in range(0, len(sent), 7):  # as a read may cut it
        out += made.feed(decode(sent[start:start + 7]))
    return out


@given(SENT)
def test_no_bytes_end_the_panel_and_what_textual_reads_is_read_alike(sent):
    textual_private.read_anything()
    ours = events_of(linux_driver.XTermParser(),
                     linux_driver.getincrementaldecoder("utf-8")().decode, sent)
    for event in ours:
        if isinstance(event, events.Key):
            (event.key + (event.character or "")).encode()
    try:
        theirs = events_of(XTermParser(), textual_private.getincrementaldecoder("utf-8")().decode,
                           sent)
        [event.key.encode() for event in theirs if isinstance(event, events.Key)]
    except (ValueError, OverflowError):
        return
    if b":" not in sent:
        assert [repr(event) for event in ours] == [repr(event) for event in theirs]


@pytest.mark.parametrize(("sent", "keys"), [
    (b"\x1b[9;1:1u", ["tab"]), (b"\x1b[9;1:2u", ["tab"]), (b"\x1b[9;1:3u", []),
    (b"\x1b[97:65;2:1;65u", ["A"]), (b"\x1b[1;5:1A", ["ctrl+up"]), (b"\x1b[3;5:3~", []),
    (b"\x1b[1114112u", []), (b"\xffa", ["replacement_character", "a"])])
def test_keys_with_an_event_type_are_pressed_once(sent, keys):
    textual_private.read_anything()
    read = events_of(linux_driver.XTermParser(),
                     linux_driver.getincrementaldecoder("utf-8")().decode, sent)
    assert [event.key for event in read] == keys
