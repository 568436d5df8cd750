"""Textual's driver, for terminals that have only ASCII, and for those that vanish."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from typing import Any

from rich.cells import get_character_cell_size
from textual.drivers.linux_driver import LinuxDriver

from gpu_panel import textual_private

_ALIKE = {
    "─━┄┅┈┉╍═╌╴╶╸": "-", "│┃┊┆║╎": "|", "╭╮╰╯┌┐└┘├┤┬┴┼╞╡╪┣┫┳┻╋┏┓┗┛╔╗╚╝⎿": "+",
    "●◉◆▣⏺★": "*", "■▪▇█▉▊": "#", "○◌◔◐◇□µμ°": "o",
    "✓✔▾▼↓⏷": "v", "✗✘×⨯": "x", "▸▶►→⏵≥": ">", "◂◀◄←⏴≤⏎↵": "<", "▴▲↑⏶": "^", "…≈": "~",
    "·•∙░☐": ".", "–—−▀▔": "-", "↻⟳": "@", "“”„": '"', "‘’‚": "'", "▁▂": "_", "▃▄": "=",
    "▅▆±": "+", "▋▌▍▎▏▐▕": "|", "▒": ":", "▓": "#", "⚠♪": "!", "␀ ": " ", "²": "2", "³": "3",
    "☑☒": "X"}
_TABLE = {ord(c): plain for alike, plain in _ALIKE.items() for c in alike}
_UPPER, _LOWER = 0b00011011, 0b11100100
"""The dots of a braille character in its upper and its lower half (Unicode 2800 to 28FF)."""
for _dots in range(256):
    _high, _low = (_dots & _UPPER).bit_count(), (_dots & _LOWER).bit_count()
    _TABLE[0x2800 + _dots] = "#" if _high + _low > 5 else ":" if _high and _low \
        else "'" if _high else "." if _low else " "


def ascii_only(text: str) -> str:
    """`text` with an ASCII character of the same width in place of each other one."""
    return re.sub(r"[^\x00-\x7f]", lambda other: "?" * get_character_cell_size(other[0]),
                  text.translate(_TABLE))


def wants_ascii(env: Mapping[str, str]) -> bool:
    """Whether the environment asks for plain characters: by GPU_PANEL_ASCII (1 or 0), by a locale
    that is C, POSIX or of another encoding than UTF-8, or by a terminal whose font has no more."""
    asked = env.get("GPU_PANEL_ASCII", "")
    if asked in ("0", "1"):
        return asked == "1"
    if env.get("TERM", "") in ("linux", "vt100", "vt102", "vt220", "dumb"):
        return True
    name = next((env[k] for k in ("LC_ALL", "LC_CTYPE", "LANG") if env.get(k)), "")
    # Python itself changes C into C.UTF-8 when it starts, in LC_CTYPE.
    if name == "C.UTF-8" and not env.get("LC_ALL"):
        name = env.get("LANG") or name
    encoding = name.partition(".")[2].partition("@")[0].lower().replace("-", "")
    return bool(name) and (name in ("C", "POSIX") or (bool(encoding) and encoding != "utf8"))


class PanelDriver(LinuxDriver):
    def __init__(self, app: Any, **options: Any) -> None:
        """`app`: the panel, which gets it as `terminal`."""
        textual_private.read_anything()
        super().__init__(app, **options)
        self.app = app
        app.terminal = self
        self._ascii = wants_ascii(os.environ)
        self._asleep = False

    def suspend_application_mode(self) -> None:
        self._asleep = True
        super().suspend_application_mode()

    def resume_application_mode(self) -> None:
        """Resume only what was suspended. The kernel sends SIGCONT right behind the SIGHUP of a
        terminal that closes: resumed then, a second thread would read the end of the input again
        and again, and the panel that has ended would never be gone."""
        if self._asleep:
            self._asleep = False
            super().resume_application_mode()

    def write(self, data: str) -> None:
        """Send this. Without a terminal that takes it the panel ends: where no SIGHUP tells so, it
        would go on for ever, and wait for room that nobody makes."""
        if textual_private.writes(self):
            super().write(ascii_only(data) if self._ascii else data)
        else:
            self.app.exit(None, 128 + signal.SIGHUP)

    def send(self, sequence: str) -> None:
        """Send a sequence that draws nothing, such as the bell, unless the shell is shown."""
        if not self._asleep:
            self.write(sequence)
