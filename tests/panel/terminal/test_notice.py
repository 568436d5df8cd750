"""Which sequence a terminal is sent for a notification, and that nothing in it is obeyed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_panel.terminal.notice import kind, notice

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
