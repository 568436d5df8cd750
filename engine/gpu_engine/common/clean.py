"""Make text harmless before it is shown: all that comes from a file, another process or another
machine. A terminal obeys escape sequences, and Textual passes them through: a training log could
set the window's title, write to the clipboard (OSC 52), clear the screen or reverse the text.

And what is shown in place of a secret: of a variable, an option or a URL that looks like one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

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
        # What a terminal shows in the end: text after a carriage return overwrites what stood
        # there, and an erase sequence removes what is left of it.
        shown = ""
        for part in reversed(text.translate(_BREAKS).split("\r")):
            under = _visible(part)
            if len(under) > len(shown):
                shown += under[len(shown):]
            if _ERASES.search(part):
                break
        text = _LEADING.sub("", shown)
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
# An option or a parameter has many more meanings than a variable: --key-dim, --text-key,
# --eos-token and --use-auth-token are no secrets, --password-file is where one is.
_OPTION = re.compile(
    r"(?!(?:use|no|with|add|is)[-_])(?:.*[-_.])??(?:(?:API|ACCESS|ACCOUNT|AUTH|ENCRYPTION|HF|LICENSE"
    r"|OPENAI|PRIVATE|SECRET|SIGNING|WANDB)[-_]?KEY"
    r"|(?:(?:ACCESS|API|AUTH|BEARER|HF|HUB|REFRESH)[-_]?)?TOKEN"
    r"|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|SIGNATURE|PAT|PASS|AUTH)", re.IGNORECASE)
_TOKEN_OF_A_TEXT = re.compile(
    r"(?:.*[-_.])?(?:AUDIO|BLANK|BOS|CLS|DRAFT|END|EOS|FIRST|IMAGE|INITIALIZER|INSTANCE|LAST|MASK"
    r"|MODIFIER|NEXT|PAD|PER|PLACEHOLDER|PROMPT|SEP|SPECIAL|START|STOP|TRIGGER|UNK|VIDEO)"
    r"[-_]?TOKEN", re.IGNORECASE)
_ASSIGNED = re.compile(r"([-+~]*)([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_USER = re.compile(r"([A-Za-z][\w+.-]{0,20})://([^\s/?#]*)@")
_QUERY = re.compile(r"([?&])([^\s=&#?]+)=([^\s&#]*)")


def shown(name: str, value: str) -> str:
    """The value of a variable for people: HF_TOKEN's and WANDB_API_KEY's are not."""
    return MASK if _SECRET.search(name) else _shown_url(value)


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables for people."""
    return {name: shown(name, value) for name, value in env.items()}


def shown_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a task for people."""
    return {name: value if not isinstance(value, str) else
            MASK if _is_secret(name) else _shown_url(value) for name, value in params.items()}


def shown_words(words: Sequence[str]) -> list[str]:
    """A command for people, without the values of variables (`HF_TOKEN=…`) and options
    (`--api-key …`, `trainer.api_key=…`) that look like secrets, and without users and passwords in
    URLs. A word with spaces is read as a shell's line."""
    out, hidden = list[str](), False
    for word in words:
        if hidden and not word.startswith(("-", "$")):
            out.append(MASK)
            hidden = False
            continue
        hidden = word.startswith("-") and _is_secret(word.lstrip("-"))
        parts = re.split(r"(\s+)", word)
        if len(parts) > 1:
            parts[::2] = shown_words(parts[::2])
            out.append("".join(parts))
        else:
            out.append(shown_set(word))
    return out


def shown_set(assignment: str) -> str:
    """A `key=value` of a spec, or of a command, for people."""
    found = _ASSIGNED.fullmatch(assignment)
    if found is None:
        return _shown_url(assignment)
    dashes, key, value = found.groups()
    name = key.rpartition(".")[2]
    if key.startswith("run.env.") or _VARIABLE.fullmatch(name):
        return f"{dashes}{key}={shown(name, value)}"
    secret = _is_secret(name) and not value.startswith("$")
    return f"{dashes}{key}={MASK if secret else _shown_url(value)}"


def _is_secret(name: str) -> bool:
    """Whether an option or parameter of this name holds a secret itself."""
    return _OPTION.fullmatch(name) is not None and _TOKEN_OF_A_TEXT.fullmatch(name) is None


def _shown_url(text: str) -> str:
    """The URLs in a text without users, passwords and keys. `git@` is no secret of ssh's."""
    if "://" not in text:
        return text
    text = _USER.sub(lambda m: f"{m[1]}://{MASK}@" if ":" in m[2] or "http" in m[1].lower()
                     else m[0], text)
    return _QUERY.sub(lambda m: f"{m[1]}{m[2]}={MASK if _is_secret(m[2]) else m[3]}", text)
