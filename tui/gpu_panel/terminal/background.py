"""Whether the terminal's background is light: by COLORFGBG, else by asking it with OSC 11.

The answer comes as if it were typed. So the question is followed by another one that every
terminal answers (DA1), and what is read ends with that one's answer. If it does not come in time,
`Answers` takes both out of the input later, so that they are never taken for keys. Keys that were
typed meanwhile, or before the program had begun, are kept.

OSC 11: xterm's control sequences; DA1: ECMA-48 and the VT100; COLORFGBG: rxvt, Konsole.
"""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from collections.abc import Mapping
from dataclasses import dataclass

QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_WAIT = 0.3
_COLOUR = re.compile(r"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})"
                     r"[^\x07\x1b]*(?:\x07|\x1b\\)")
_ANSWER = re.compile(r"\x1b\]11;[^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[\?[0-9;]*c")
_BEGUN = re.compile(r"\x1b(?:\](?:1(?:1(?:;[^\x07\x1b]*\x1b?)?)?)?|\[(?:\?[0-9;]*)?)?$")
_DEVICE = re.compile(r"\x1b\[\?[0-9;]*c")


def by_environment(env: Mapping[str, str]) -> bool | None:
    """Whether COLORFGBG ("0;15", "15;default;0") says that the background is light; None if it says
    nothing. Of the sixteen colours 7 and 9 to 15 are light."""
    last = env.get("COLORFGBG", "").rpartition(";")[2]
    return int(last) in (7, *range(9, 16)) if last.isdecimal() and int(last) < 16 else None


def by_answer(text: str) -> bool | None:
    """Whether an answer to OSC 11 means a light background; None: no answer. By luma (BT.709)."""
    found = _COLOUR.search(text)
    if found is None:
        return None
    r, g, b = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5


def ask(fd: int, wait: float = _WAIT) -> bool | None:
    """Ask the terminal `fd`; None if it does not answer within `wait` seconds. What else was typed
    is in `heard`. A program in the background of a shell, which would be stopped, does not ask."""
    try:
        if os.tcgetpgrp(fd) != os.getpgrp():
            return None
        before = termios.tcgetattr(fd)
    except (OSError, termios.error):
        return None
    data = b""
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        os.write(fd, QUESTION)
        end = time.monotonic() + wait
        while not _DEVICE.search(_text(data)) and (left := end - time.monotonic()) > 0:
            if not select.select([fd], [], [], left)[0]:
                break
            data += os.read(fd, 1024)
        return by_answer(_text(data))
    except OSError:
        return None
    finally:
        heard.owed = not _DEVICE.search(_text(data))
        # Enter is a newline in this mode of the terminal, and a carriage return for the panel.
        heard.typed = _ANSWER.sub("", _text(data)).replace("\n", "\r")
        termios.tcsetattr(fd, termios.TCSANOW, before)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def light(env: Mapping[str, str], fd: int) -> bool:
    """Whether the background is light, as far as it can be found out."""
    told = by_environment(env)
    if told is None and env.get("TERM") not in (None, "", "dumb", "linux"):
        told = ask(fd)
    return bool(told)


@dataclass
class _Heard:
    owed: bool = False
    """Whether the terminal was asked and has not answered in time."""
    typed: str = ""
    """What was read and is no answer: keys, and perhaps the beginning of an answer."""


heard = _Heard()
"""What `ask` has heard of the terminal of this program."""


class Answers:
    """Takes late answers out of what is typed, until they have come."""

    def __init__(self, awaited: bool) -> None:
        """`awaited`: whether the terminal still owes an answer. If not, everything is passed on."""
        self._awaited = awaited
        self._kept = ""

    def without(self, data: str) -> str:
        """`data` without them. The beginning of one at its end is kept back for the next call."""
        if not self._awaited:
            return data
        whole, self._kept = self._kept + data, ""
        text = _ANSWER.sub("", whole)
        if _DEVICE.search(whole):
            self._awaited = False
            return text
        begun = _BEGUN.search(text) if data else None
        if begun and len(begun[0]) > 1:  # a lone ESC may be the key
            self._kept = begun[0]
            return text[:begun.start()]
        return text
