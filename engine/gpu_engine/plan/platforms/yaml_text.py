"""Mappings, lists, texts and numbers as YAML that every parser reads back as they were.

A text is double-quoted, with escapes for all that is not plain ASCII, or, where it has several
lines or is a script, a literal block, which nothing in it can end. So no value becomes syntax.
(A YAML library would be a dependency for these lines alone.)
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from gpu_engine.common.errors import UserError

Value = str | int | Mapping[str, "Value"] | Sequence["Value"]

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What YAML 1.1 reads as something else than a text."""


class Script(str):
    """A text of lines, shown as lines."""


def dump(document: Mapping[str, Value], notes: Sequence[str] = ()) -> str:
    """`document` as YAML, below `notes` as comments. Raises UserError for a text that YAML can't
    hold."""
    out = [f"# {line}" for note in notes for line in _comment(note)]
    return "\n".join([*out, *_mapping(document, "")]) + "\n"


def _comment(note: str) -> list[str]:
    plain = "".join(c if c.isprintable() else " " for c in note)
    return textwrap.wrap(plain, 96, subsequent_indent="  ", break_long_words=False)


def _mapping(document: Mapping[str, Value], indent: str) -> list[str]:
    return [line for key, value in document.items()
            for line in _entry(f"{indent}{_key(key)}:", value, indent + "  ")]


def _entry(head: str, value: Value, indent: str) -> list[str]:
    """The lines of one value behind `head`; those below it have `indent`."""
    if isinstance(value, Script) and _fits_block(value):
        lines = value.removesuffix("\n").split("\n")
        # The indentation is named where the first line has one of its own, or is empty.
        named = "2" if lines[0][:1] in ("", " ") else ""
        kept = "" if value.endswith("\n") else "-"
        return [f"{head} |{named}{kept}", *(indent + line for line in lines)]
    if isinstance(value, str):
        return [f"{head} {quoted(value)}"]
    if isinstance(value, int):
        return [f"{head} {value}"]
    if isinstance(value, Mapping):
        return [head, *_mapping(value, indent)]
    lines = [head]
    for item in value:
        if isinstance(item, Mapping):
            first, *rest = _mapping(item, indent + "  ")
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines += _entry(f"{indent}-", item, indent + "  ")
    return lines


def _fits_block(text: str) -> bool:
    """A block has no escapes: every character must be one that YAML takes as it stands. Empty
    lines at the end would need another way of keeping them."""
    return bool(text.strip()) and not text.endswith("\n\n") and all(
        line.isprintable() and line.isascii() for line in text.split("\n"))


def _key(key: str) -> str:
    return key if _KEY.fullmatch(key) and key.lower() not in _WORDS else quoted(key)


def quoted(text: str) -> str:
    """`text` in double quotes. Raises UserError for bytes that are no text (a lone surrogate)."""
    out = []
    for c in text:
        if c in '"\\':
            out.append("\\" + c)
        elif " " <= c <= "~":
            out.append(c)
        elif "\ud800" <= c <= "\udfff":
            raise UserError(f"{text!a} holds bytes that are not UTF-8, which YAML can't hold")
        elif c == "\n":
            out.append("\\n")
        else:
            n = ord(c)
            out.append(f"\\x{n:02x}" if n < 0x100 else
                       f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}")
    return '"' + "".join(out) + '"'
