"""Whether the terminal's background is light: by COLORFGBG, else by asking it with OSC 11.

The answer comes as if it were typed. So the question is followed by another one that every
terminal answers (DA1), and what is read ends with that one's answer. Keys that were typed
meanwhile are lost.

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

QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_WAIT = 0.5
"""Seconds; an answer that comes later would be taken for keys."""
_COLOUR = re.compile(r"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})"
                     r"[^\x07\x1b]*(?:\x07|\x1b\\)")
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
    """Ask the terminal `fd`; None if it does not answer within `wait` seconds. A program
    in the background of a shell, which would be stopped, does not ask."""
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
        termios.tcsetattr(fd, termios.TCSANOW, before)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def light(env: Mapping[str, str], fd: int) -> bool:
    """Whether the background is light, as far as it can be found out."""
    told = by_environment(env)
    if told is None and env.get("TERM") not in (None, "", "dumb", "linux"):
        told = ask(fd)
    return bool(told)
