"""The panel's characters for terminals that have only ASCII. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rich.cells import get_character_cell_size

_ALIKE = {
    "─━┄┅┈┉╍═╌╴╶": "-", "│┃┊┆║╎": "|", "╭╮╰╯┌┐└┘├┤┬┴┼╞╡╪": "+",
    "●◉◆▣⏺": "*", "■▪": "#", "○◌◔◐◇□": "o",
    "✓✔": "v", "✗✘×⨯": "x", "▸▶►→⏵": ">", "◂◀◄←⏴": "<", "▾▼↓⏷": "v", "▴▲↑⏶": "^", "…": "~",
    "·•∙": ".", "–—−": "-", "↻⟳": "@", "≈": "~", "≤": "<", "≥": ">", "°": "o", "µμ": "u",
    "“”„": '"', "‘’‚": "'", "▁▂": "_", "▃▄": "=", "▅▆": "+", "▇█▉▊": "#", "▋▌▍▎▏▐▕": "|",
    "▀▔": "-", "░": ".", "▒": ":", "▓": "#", "⚠": "!", "␀": " ", " ": " ", "²": "2", "³": "3",
    "⏎↵": "<", "±": "+", "☐": ".", "☑☒": "X", "♪": "!",
    "┣┫┳┻╋┏┓┗┛╔╗╚╝": "+", "⎿└": "+",
}
_TABLE = {ord(c): plain for alike, plain in _ALIKE.items() for c in alike}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_UPPER, _LOWER = 0b00011011, 0b11100100
"""The dots of a braille character in its upper and its lower half (Unicode 2800 to 28FF)."""


def ascii_only(text: str) -> str:
    """`text` with an ASCII character of the same width in place of each other one."""
    return _NOT_ASCII.sub(lambda found: "?" * get_character_cell_size(found[0]),
                          text.translate(_TABLE))


def _dots(dots: int) -> str:
    upper, lower = (dots & _UPPER).bit_count(), (dots & _LOWER).bit_count()
    if upper + lower > 5:
        return "#"
    if upper and lower:
        return ":"
    return "'" if upper else "." if lower else " "


_TABLE |= {0x2800 + dots: _dots(dots) for dots in range(256)}


def wanted(env: Mapping[str, str]) -> bool:
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


def translation(env: Mapping[str, str]) -> Callable[[str], str]:
    """What to do with each text before it is sent."""
    return ascii_only if wanted(env) else str
