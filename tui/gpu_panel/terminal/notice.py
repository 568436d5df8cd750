"""The bytes that make a terminal ring and show a notification on the desktop. Pure.

There are two usual sequences, and terminals that know both would show two notifications, so one is
sent. Sources: the terminals' own documents of control sequences, and kitty's changelog (0.24).

    OSC 777 ; notify ; TITLE ; TEXT    urxvt's; kitty, Ghostty, foot, WezTerm, Konsole, Contour, VTE
    OSC 9 ; TEXT                       iTerm2's; others of xterm's kind take no notice of it

VTE before 0.46 printed an unknown OSC 777. Alacritty, Windows Terminal, Apple's Terminal and VS
Code show neither: they get the bell alone, as does what is no terminal of xterm's kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpu_engine.common.clean import clean

Kind = Literal["777", "9"]

BELL = "\a"
_LONGEST_TITLE, _LONGEST_TEXT = 80, 240
_WITH_TITLE = ("kitty", "ghostty", "foot", "wezterm", "rxvt", "konsole", "contour")
_NEITHER = ("apple_terminal", "vscode", "alacritty", "jetbrains")
_VTE_SINCE = 4600


def kind(env: Mapping[str, str]) -> Kind | None:
    """Which sequence the terminal knows, as the environment describes it; None for the bell alone.
    Inside tmux the environment is that of the terminal in which tmux was started."""
    term = env.get("TERM", "").lower()
    names = " ".join((term, env.get("TERM_PROGRAM", ""), env.get("LC_TERMINAL", ""))).lower()
    inside = "TMUX" in env
    if not inside and ("STY" in env or not term.startswith(
            ("xterm", "vte", "iterm", *_WITH_TITLE))):
        return None
    if "iterm" in names:
        return "9"
    if any(name in names for name in _WITH_TITLE) or any(
            name in env for name in ("KITTY_WINDOW_ID", "KONSOLE_VERSION", "WEZTERM_PANE",
                                     "GHOSTTY_RESOURCES_DIR")):
        return "777"
    if any(name in names for name in _NEITHER) or "WT_SESSION" in env:
        return None
    vte = env.get("VTE_VERSION", "")
    if vte:
        return "777" if vte.isdecimal() and int(vte) >= _VTE_SINCE else None
    return "9"


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
