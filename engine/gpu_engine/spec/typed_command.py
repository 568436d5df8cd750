"""A command as a person types it into a field: its words, as a shell would make them. Pure.

No shell is involved, so what only a shell can do is refused by its name, with the `sh -c` that
would do it. Standard library only: a rank imports this.
"""

from __future__ import annotations

import os.path
import re
import shlex

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
"""A word that sets a variable where a command begins: `LR=1`."""

_PART = re.compile(r"""(?P<joined>\\\r?\n[ \t]*)|(?P<quoted>'[^']*'|\\.)"""
                   r"""|(?P<double>"(?:\\.|[^"\\])*")|(?P<home>(?<!\S)~[\w.-]*(?=/|\s|\Z))"""
                   r"""|(?P<plain>.)""", re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_VALUE = re.compile(r"\$[\w{(?$!@#]|`")
_SHELLS = "|&;<>()*\n"
"""What an unquoted character of these means, only a shell knows."""


def split(text: str) -> list[str]:
    """The words of a command. Backslashes at the ends of lines join them, `~` is the home folder,
    and `LR=1 python …` becomes `env LR=1 python …`. Raises ValueError, which says what is missing,
    or what only a shell could do."""
    text = re.sub(r"\s*\n\s*\Z", "", text)
    parts = []
    for found in _PART.finditer(text):
        part = found.group()
        if found.lastgroup == "joined":
            part = " " if found.group().endswith((" ", "\t")) else ""
        elif found.lastgroup == "home":
            part = shlex.quote(os.path.expanduser(part))  # noqa: PTH111 - Path's raises
        elif what := _for_a_shell(text, found):
            raise ValueError(f"{what} needs a shell, and none reads this: quote it if it belongs "
                             f"to a word, or write sh -c {shlex.quote(text)}")
        if found.lastgroup == "double":  # shlex leaves these two their backslash
            part = _ESCAPED.sub(_in_quotes, part)
        parts.append(part)
    try:
        words = shlex.split("".join(parts))
    except ValueError as err:
        raise ValueError(_unfinished(text, str(err))) from None
    if words and ASSIGNMENT.fullmatch(words[0]):
        words.insert(0, "env")
    return words


def one_line(text: str) -> str:
    """Lines of a shell as one that means the same to it: those that a backslash continues are
    joined, others are commands of their own. In a bracketed paste tmux sends CR at their ends, and
    of CR LF two."""
    if not re.search(r"(?<!\r)\r(?:\r\r)*(?!\r)", text):
        text = text.replace("\r\r", "\r")
    whole = re.sub(r"\\(\r\n?|\n)[ \t]*", " ", text.strip())
    return "; ".join(line.strip() for line in whole.splitlines() if line.strip())


def _in_quotes(escaped: re.Match[str]) -> str:
    char = escaped.group()[1]
    return "" if char == "\n" else char if char in "$`" else escaped.group()


def _for_a_shell(text: str, found: re.Match[str]) -> str | None:
    """What in this part means something to a shell alone; None: nothing."""
    part = found.group()
    if found.lastgroup == "double":
        value = _VALUE.search(_ESCAPED.sub("", part))
        return value and _name(_ESCAPED.sub("", part), value.start())
    if _VALUE.match(text, found.start()):
        return _name(text, found.start())
    if part not in _SHELLS:
        return None
    return "a second line" if part == "\n" else f'"{part}"'


def _name(text: str, at: int) -> str:
    """The variable or command that begins here, as it is written: "$LR"."""
    found = re.compile(r"\$\w+|\$\{[^}]*\}?|\$\([^)]*\)?|\$.|`[^`]*`?").match(text, at)
    return f'"{found.group() if found else text[at]}"'


def _unfinished(text: str, error: str) -> str:
    """Why a text can't be split."""
    if "escaped" in error:
        return "ends in a backslash with nothing after it"
    for quote in "\"'":
        try:
            shlex.split(text + quote)
        except ValueError:
            continue
        return f"the quote {quote} is not closed"
    return "ends in a backslash with nothing after it"
