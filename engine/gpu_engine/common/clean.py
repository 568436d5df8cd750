"""Make text harmless before it is shown: all that comes from a file, another process or another
machine. A terminal obeys escape sequences, and Textual passes them through: a training log could
set the window's title, write to the clipboard (OSC 52), clear the screen or reverse the text.

And what is shown in place of a secret: of a variable whose name looks like one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

LIMIT = 4096
"""How many characters of a line are kept: more than any terminal is wide."""

# ECMA-48. Control strings (OSC, DCS, APC, PM, SOS) run to their terminator, to a character that
# aborts them, or to the end of the line. A lone ESC is removed too. An 8-bit C1 introducer means
# the same as ESC and a letter.
_SEQUENCE = re.compile(
    r"(?:\x1b[]P_^X]|[\x9d\x90\x9f\x9e\x98])[^\x07\x18\x1a\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-Z\\^-~]?"
)
_ERASES = re.compile(r"(?:\x1b\[|\x9b)[02]?K")
_ERASES_ALL = re.compile(r"(?:\x1b\[|\x9b)2K")

# Unicode calls these printable, but they have no width, or terminals disagree about it: variation
# selectors, fillers, tags.
_WIDTHLESS = re.compile("[\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0"
                        "\U000e0000-\U000e0fff]")
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED = re.compile(f"({_MARKS}{{2}}){_MARKS}+")
_LEADING = re.compile(f"^{_MARKS}+")

_DROPPED = frozenset({"Cc", "Cf", "Cs"})
_SPACES = frozenset({"Zs", "Zl", "Zp"})
_KEPT = str.maketrans("\n\t", "  ")
_BREAKS = str.maketrans(dict.fromkeys("\n\v\f\x85\u2028\u2029", " "))


def clean(text: str, limit: int | None = LIMIT) -> str:
    """`text` as one harmless line: only printable characters and spaces, at most `limit` of them;
    None: all, which may be more than `text` has, as tabs are widened. Where a progress bar redraws
    itself (carriage return, backspace), its last state is kept."""
    if not (text.isascii() and text.isprintable()):
        text = _show_last(text.translate(_BREAKS))
    return text if limit is None or len(text) <= limit else text[:max(limit - 1, 0)] + "…"


def without_sequences(text: str) -> str:
    """`text` without what colours it or moves a terminal's cursor."""
    return _SEQUENCE.sub("", text) if not text.isprintable() else text


def clean_text(text: str) -> str:
    """A text of any number of lines and any length, each line made harmless by `clean`. Its line
    breaks and tabs stay."""
    if text.isascii() and text.translate(_KEPT).isprintable():
        return text
    return "\n".join("\t".join(clean(part, None) for part in line.split("\t"))
                     for line in text.split("\n"))


def escaped(text: str) -> str:
    """A text in which what can't be seen is written as in TOML and JSON: "\\u001b". For texts that
    are typed or read back, as values in a message."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
        for c in text)


def clean_bytes(data: bytes, limit: int | None = LIMIT) -> str:
    """`clean` of bytes from a file, read as UTF-8; invalid bytes become "�"."""
    return clean(data.decode("utf-8", "replace"), limit)


def clean_lines(text: str, lines: int = 2000) -> list[str]:
    """The last `lines` lines of a text such as a traceback, each made harmless by `clean`."""
    return [clean(line) for line in text.split("\n")[-lines:]]


def _show_last(text: str) -> str:
    """What a terminal shows in the end: text after a carriage return overwrites what stood there,
    and an erase sequence removes what is left of it."""
    shown = ""
    for part in reversed(text.split("\r")):
        under = _visible(part)
        if len(under) > len(shown):
            shown += under[len(shown):]
        if _ERASES.search(part):
            break
    return _LEADING.sub("", shown)


def _visible(part: str) -> str:
    *_, part = _ERASES_ALL.split(part)
    part = _SEQUENCE.sub("", part)
    if "\b" in part:
        part = _backspaced(part)
    part = part.expandtabs(8)
    if not part.isprintable():
        part = "".join(map(_harmless, part))
    if part.isascii():
        return part
    return _STACKED.sub(r"\1", _WIDTHLESS.sub("", part))


def _harmless(char: str) -> str:
    if char.isprintable():
        return char
    kind = unicodedata.category(char)
    if kind in _DROPPED:
        return ""
    return " " if kind in _SPACES else char


def _backspaced(text: str) -> str:
    kept: list[str] = []
    for char in text:
        if char != "\b":
            kept.append(char)
        elif kept:
            kept.pop()
    return "".join(kept)


MASK = "***"
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIALS?"
                     r"|(?<![A-Z])(PAT|PASS|AUTH))(?![A-Z])", re.IGNORECASE)


def shown(name: str, value: str) -> str:
    """The value of a variable for people: HF_TOKEN's and WANDB_API_KEY's are not."""
    return MASK if _SECRET.search(name) else value


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables for people."""
    return {name: shown(name, value) for name, value in env.items()}


def shown_words(words: Sequence[str]) -> list[str]:
    """A command for people: the words `HF_TOKEN=…` before its program are masked."""
    return [f"{found[1]}={shown(found[1], found[2])}"
            if (found := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL)) else word
            for word in words]


def shown_set(assignment: str) -> str:
    """A `key=value` of a spec for people."""
    key, _, value = assignment.partition("=")
    env = key.startswith("run.env.")
    return f"{key}={shown(key.removeprefix('run.env.'), value)}" if env else assignment
