"""The values of one key of a grid, as a person types them: `train.lr=1e-3,3e-4`. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.common.values import ANY
from gpu_engine.spec.schema import keys

MOST = 1000
"""Values of a key, and members of a sweep."""
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CLOSING = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One key that varies, with its values in order, each as text that `--set` takes."""

    key: str
    values: tuple[str, ...]


def parse(text: str) -> Axis:
    """The axis in `KEY=v1,v2,…`. A comma between quotes or brackets belongs to a value.
    Raises SpecError."""
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SpecError([Problem("", None, f"--grid {text!r}: expected KEY=VALUE,VALUE, for "
                                           "example train.lr=1e-3,3e-4")])
    known = keys().get(key)
    kind = (known.kind if known is not None else ANY).without_none
    try:
        values = _pieces(rest)
        if kind.has("str") or kind.has("path"):
            values = [_unquoted(piece) for piece in values]
    except ValueError as err:
        raise SpecError([Problem(key, rest, str(err))]) from None
    if len(values) > MOST:
        raise SpecError([Problem(key, rest, f"these are {len(values):,} values; at most {MOST:,}")])
    return Axis(key, tuple(values))


def _pieces(text: str) -> list[str]:
    """The text between the commas that stand outside quotes and brackets. Raises ValueError."""
    pieces, begin, closing = [], 0, list[str]()
    quote = ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "\"'" and (closing or not text[begin:at].strip()):
            quote = char  # in the middle of a word it is an apostrophe
        elif char in _CLOSING:
            closing.append(_CLOSING[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif char == "," and not closing:
            pieces.append(text[begin:at])
            begin = at + 1
    if quote:
        raise ValueError(f"the quote {quote} is not closed")
    if closing:
        raise ValueError(f"a {closing[-1]} is missing")
    pieces = [piece.strip() for piece in [*pieces, text[begin:]]]
    if not all(pieces):
        raise ValueError('a value is missing between the commas; write "" for an empty text'
                         if len(pieces) > 1 else "expected at least one value")
    return pieces


def _unquoted(piece: str) -> str:
    """A text without the quotes around all of it. Raises ValueError if it can't be read."""
    if len(piece) < 2 or piece[0] not in "\"'" or piece[-1] != piece[0]:
        return piece
    if piece[0] == "'":
        return piece[1:-1]
    try:
        return str(json.loads(piece))
    except ValueError:
        raise ValueError(f"{piece} is no text that can be read") from None
