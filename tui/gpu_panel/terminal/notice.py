"""The bytes that make a terminal ring and show a notification on the desktop. Pure.

There are two usual sequences, and terminals that know both would show two notifications, so one is
sent. Sources: the terminals' own documents of control sequences, and kitty's changelog (0.24).

    OSC 777 ; notify ; TITLE ; TEXT    urxvt's; kitty, Ghostty, foot, WezTerm, Konsole, Contour, VTE
    OSC 9 ; TEXT                       iTerm2's; others of xterm's kind take no notice of it

What is no terminal of xterm's kind gets the bell alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpu_engine.common.clean import clean

Kind = Literal["777", "9"]

BELL = "\a"
_LONGEST_TITLE, _LONGEST_TEXT = 80, 240
_WITH_TITLE = ("kitty", "ghostty", "foot", "wezterm", "rxvt", "konsole", "contour", "vte")


def kind(env: Mapping[str, str]) -> Kind | None:
    """Which sequence the terminal knows, as the environment describes it; None for the bell alone.
    Inside tmux the environment is that of the terminal in which tmux was started."""
    term = env.get("TERM", "").lower()
    if "TMUX" not in env and ("STY" in env or not term.startswith(("xterm", *_WITH_TITLE))):
        return None
    names = " ".join((term, env.get("TERM_PROGRAM", ""), *env)).lower()  # KITTY_WINDOW_ID, …
    return "777" if any(name in names for name in _WITH_TITLE) else "9"


def notice(env: Mapping[str, str], title: str, text: str) -> str:
    """What to send: the bell, and the notification in the way that the terminal knows. `title` and
    `text` may be anything: nothing in them can end the sequence or begin another."""
    wanted = kind(env)
    if wanted is None:
        return BELL
    title, text = _plain(title, _LONGEST_TITLE), _plain(text, _LONGEST_TEXT)
    if wanted == "777":
        sequence = f"\x1b]777;notify;{title};{text}\a"
    else:  # ConEmu reads a number behind the 9 as a command of its own
        sequence = f"\x1b]9;gpu-panel: {text}\a"
    if "TMUX" in env:  # handed on if its option allow-passthrough is on, else dropped
        sequence = "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return BELL + sequence


def _plain(text: str, most: int) -> str:
    """One printable line without semicolons, which part the sequence's fields."""
    return clean(text, most).replace(";", ",")
