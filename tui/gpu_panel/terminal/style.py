"""Styles as terminals know them (SGR): what turns one into another. Pure.

Sources: ECMA-48, 8.3.117; xterm's "Control Sequences" for colours by three numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "6": "25", "7": "27", "8": "28",
        "9": "29", "21": "24", "51": "54", "52": "54", "53": "55"}
"""What turns each attribute off again."""
_SEEN_ON_BLANKS = frozenset(["4", "7", "9", "21", "51", "52", "53", "5", "6"])


class Style(NamedTuple):
    """A style taken apart. Each colour as its parameters, "38;2;0;0;0"; "" is the default."""

    attributes: frozenset[str]
    front: str
    back: str


@lru_cache(maxsize=4096)
def parse(style: str) -> Style:
    """Take a style apart: the parameters of one SGR that follows a reset."""
    attributes: set[str] = set()
    front = back = ""
    codes = iter(style.split(";") if style else ())
    for code in codes:
        if code in ("38", "48"):
            kind = next(codes, "5")
            rest = [next(codes, "0") for _ in range(3 if kind == "2" else 1)]
            colour = ";".join((code, kind, *rest))
            front, back = (colour, back) if code == "38" else (front, colour)
        elif code in _OFF:
            attributes.add(code)
        elif code == "39":
            front = ""
        elif code == "49":
            back = ""
        elif len(code) == 2 and code[0] in "39":
            front = code
        elif code[:1] == "4" or code[:2] == "10":
            back = code
    return Style(frozenset(attributes), front, back)


@lru_cache(maxsize=4096)
def on_blank(style: str) -> str:
    """The same style as far as it shows on a space: without the colour and weight of its text."""
    found = parse(style)
    if found.attributes & _SEEN_ON_BLANKS:
        return style
    return found.back


@lru_cache(maxsize=8192)
def change(before: str | None, after: str) -> str:
    """The shortest SGR sequence that makes `after` of `before`; None: that is not known."""
    if before == after:
        return ""
    to = parse(after)
    anew = ";".join(filter(None, (*sorted(to.attributes), to.front, to.back)))
    anew = f"\x1b[0;{anew}m" if anew else "\x1b[m"
    if before is None:
        return anew
    at = parse(before)
    gone = {_OFF[a] for a in at.attributes - to.attributes}
    left = {a for a in at.attributes if _OFF[a] not in gone}
    codes = [*sorted(gone), *sorted(to.attributes - left)]
    if to.front != at.front:
        codes.append(to.front or "39")
    if to.back != at.back:
        codes.append(to.back or "49")
    if not codes:
        return ""
    return min(f"\x1b[{';'.join(codes)}m", anew, key=len)
